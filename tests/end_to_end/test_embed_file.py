"""``synapse-host embed-file`` and ``synapse-host jobs`` as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from synapse_host.client.job_parts import job_parts
from synapse_host.testing.command_runs import environment_of, run_synapse, synapse_command
from synapse_host.testing.running_host import RunningHost

TEXTS = [f"{'tide ' * (place % 11)}number {place}" for place in range(3000)]


@pytest.fixture(scope="module")
def file_host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    with RunningHost(certified(tmp_path_factory.mktemp("files")), {"SYNAPSE_JOBS_COMMIT_S": "0"}) as host:
        yield host


@pytest.fixture
def texts_file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"id": f"id-{n}", "text": text}) + "\n" for n, text in enumerate(TEXTS)))
    return path


def rows_computed(host: RunningHost) -> int:
    with host.client() as client:
        return sum(row["rows_computed"] for row in client.models_list()["models"])


def test_a_file_interrupted_and_killed_is_embedded_all_the_same(
    file_host: RunningHost, texts_file: Path, tmp_path: Path
) -> None:
    output = tmp_path / "vectors.npy"
    command = ("embed-file", str(texts_file), str(output), "--model", "tiny", "--json")
    with subprocess.Popen(
        synapse_command(*command), env=environment_of(file_host.home), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as first:
        with file_host.client() as client:
            while not client.call("admission.status")["jobs_recent"]:
                pass
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=60)
    assert first.returncode == 130, told
    assert not output.exists()
    file_host.kill()
    file_host.start()
    before = rows_computed(file_host)
    done = run_synapse(*command, home=file_host.home)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["rows"], said["dims"], said["truncated"]) == (3000, 32, 0)
    assert rows_computed(file_host) - before <= 3000
    with file_host.client() as client:
        expected = client.embed_many("tiny", TEXTS, retries=20)
    assert np.array_equal(np.load(output), expected.vectors)
    facts = json.loads((tmp_path / "vectors.npy.json").read_text("utf-8"))
    assert facts["ids"] == [f"id-{n}" for n in range(3000)]
    assert facts["fingerprint"] == said["fingerprint"] == expected.fingerprint
    computed = rows_computed(file_host)
    again = run_synapse(*command, home=file_host.home)
    assert again.returncode == 0, again.stderr
    assert rows_computed(file_host) == computed, "a second run collects what is there"


_UNHEARD = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
_HANG_UP = pytest.mark.skipif(_UNHEARD, reason="these tests run under nohup, and so does the command: it goes on")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=_HANG_UP)])
def test_a_signal_that_ends_it_leaves_no_part_of_the_output(
    file_host: RunningHost, texts_file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with running(file_host, texts_file, tmp_path / "vectors.npy", number.name) as embedding:
        embedding.send_signal(number)
        _, told = embedding.communicate(timeout=60)
    assert embedding.returncode == 130, told
    assert [file.name for file in tmp_path.iterdir()] == [texts_file.name]


def test_a_host_that_is_killed_meanwhile_is_named_as_what_is_missing(
    file_host: RunningHost, texts_file: Path, tmp_path: Path
) -> None:
    with running(file_host, texts_file, tmp_path / "vectors.npy", "killed") as embedding:
        file_host.kill()
        _, told = embedding.communicate(timeout=60)
    file_host.start()
    assert embedding.returncode == 3, told
    assert b"connection lost" in told
    assert b"run the same command again" in told
    assert [file.name for file in tmp_path.iterdir()] == [texts_file.name]


@contextmanager
def running(host: RunningHost, texts: Path, output: Path, key: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command while its first job, of all texts, is computed."""
    command = synapse_command("embed-file", str(texts), str(output), "--model", "tiny", "--key", key)
    with subprocess.Popen(command, env=environment_of(host.home), stderr=subprocess.PIPE) as embedding:
        with host.client() as client:
            while not any(
                job["request_key"] == f"{key}/0001" for job in client.call("admission.status")["jobs_recent"]
            ):
                assert embedding.poll() is None
        yield embedding


def test_work_is_ended_by_its_key_and_goes_on_when_it_is_wanted_again(file_host: RunningHost, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(f"long work, number {n}") + "\n" for n in range(6_000)))
    with running(file_host, tmp_path / "in.jsonl", tmp_path / "out.npy", "unwanted") as embedding:
        with file_host.client() as client:
            # As it hands in one part after the other, some may come behind this.
            ended = client.job_cancel(request_key="unwanted")["jobs"]
        _, errors = embedding.communicate(timeout=60)
    assert ended
    assert {job["state"] for job in ended} == {"cancelled"}
    assert embedding.returncode == 1
    assert b"was cancelled; what it computed is kept, and the same request_key goes on with the rest" in errors
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]
    nothing = run_synapse("jobs", "cancel", "--key", "unwanted", home=file_host.home)
    assert (nothing.returncode, nothing.stdout) == (0, "no job of unwanted was open\n")
    unchanged = run_synapse("jobs", "cancel", ended[0]["job_id"], "--json", home=file_host.home)
    assert json.loads(unchanged.stdout)["state"] == "cancelled"
    again = run_synapse(
        "embed-file", str(tmp_path / "in.jsonl"), str(tmp_path / "out.npy"), "-m", "tiny", "--key", "unwanted",
        home=file_host.home,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert np.load(tmp_path / "out.npy").shape[0] == 6_000
    which = run_synapse("jobs", "cancel", home=file_host.home)
    assert (which.returncode, "either a job id" in which.stderr) == (2, True)


def test_jobs_are_listed_shown_and_read(file_host: RunningHost, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"row-{n},word {n}\n" for n in range(100)))
    done = run_synapse(
        "embed-file", str(tmp_path / "in.csv"), str(tmp_path / "out.jsonl"), "-m", "tiny", "--key", "mine",
        home=file_host.home,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "no bar and no remark where no person looks"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 100
    listed = json.loads(run_synapse("jobs", "ls", "--json", home=file_host.home).stdout)
    (job,) = [job for job in listed["jobs_recent"] if job["request_key"] == "mine/0001"]
    table = run_synapse("jobs", "ls", home=file_host.home).stdout
    assert job["job_id"] in table
    shown = json.loads(run_synapse("jobs", "show", job["job_id"], "--json", home=file_host.home).stdout)
    assert (shown["state"], shown["items_done"]) == ("done", 100)
    assert job["job_id"] in run_synapse("jobs", "show", job["job_id"], home=file_host.home).stdout
    read = json.loads(run_synapse("jobs", "pages", job["job_id"], "--json", home=file_host.home).stdout)
    assert sorted(item["id"] for item in read["vectors"]) == sorted(f"row-{n}" for n in range(100))
    assert "row-99" in run_synapse("jobs", "pages", job["job_id"], home=file_host.home).stdout
    resumed = run_synapse("jobs", "resume", job["job_id"], "--json", home=file_host.home)
    assert json.loads(resumed.stdout)["state"] == "done"
    found: list[int] = []
    with file_host.client() as client:
        again = job_parts((f"row-{n}", f"word {n}") for n in range(100))
        assert [
            len(reply.ids) for reply in client.embed_jobs("tiny", again, request_key="mine", on_found=found.append)
        ] == [100]
    assert sum(found) == 100, "nothing of it was computed now"
    unknown = run_synapse("jobs", "show", "embed-9-9", home=file_host.home)
    assert (unknown.returncode, "embed-9-9" in unknown.stderr) == (1, True)


def test_what_cannot_be_done_is_said_before_anything_is(file_host: RunningHost, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n')
    (tmp_path / "empty.jsonl").write_text("")
    before = (tmp_path / "in.jsonl").read_bytes()
    for name, last in (
        ("twice", '{"id": "1", "text": "b"}'),
        ("half", '"\\ud800"'),
        ("long", f'"{"b" * (2**21 + 1)}"'),
    ):
        (tmp_path / f"{name}.jsonl").write_text('"a"\n' * 4500 + last)
    cases = {
        ("in.jsonl", "in.jsonl"): "in.jsonl itself",
        ("in.jsonl", "out.txt"): "ends in none",
        ("in.jsonl", "no/such/out.npy"): "No such file",
        ("empty.jsonl", "out.npy"): "holds no text",
        ("twice.jsonl", "out.npy"): "twice.jsonl, line 4501: the id '1'",
        ("half.jsonl", "out.npy"): "half.jsonl, line 4501: the text",
        ("long.jsonl", "out.npy"): "long.jsonl, line 4501: the text",
        ("gone.jsonl", "out.npy"): "No such file",
    }
    with file_host.client() as client:
        jobs = [job["job_id"] for job in client.call("admission.status")["jobs_recent"]]
    for (source, output), words in cases.items():
        done = run_synapse(
            "embed-file", str(tmp_path / source), str(tmp_path / output), "-m", "tiny", home=file_host.home
        )
        assert (done.returncode, words in done.stderr) == (2, True), (source, output, done.stderr)
    with file_host.client() as client:
        now = [job["job_id"] for job in client.call("admission.status")["jobs_recent"]]
        assert now == jobs, "no job was started"
    assert (tmp_path / "in.jsonl").read_bytes() == before


@pytest.mark.parametrize("key", ["", "k" * 249])
def test_a_key_that_can_name_no_job_is_refused(file_host: RunningHost, tmp_path: Path, key: str) -> None:
    (tmp_path / "in.jsonl").write_text('"a"\n')
    arguments = (str(tmp_path / "in.jsonl"), str(tmp_path / "out.npy"), "-m", "tiny", "--key", key)
    done = run_synapse("embed-file", *arguments, home=file_host.home)
    assert (done.returncode, "--key" in done.stderr) == (2, True), done.stderr


def test_the_longest_text_is_the_hosts_to_say(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps("a" * 3000) + "\n")
    with RunningHost(tmp_path / "home", {"SYNAPSE_INLINE_MAX_TEXT_CHARS": "2000"}) as host:
        done = run_synapse("embed-file", str(tmp_path / "in.jsonl"), str(tmp_path / "v.npy"), "-m", "m", home=host.home)
    assert done.returncode == 2
    assert "3000 characters and may have 2000" in done.stderr
