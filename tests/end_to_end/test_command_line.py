"""Every verb of both programs against a real host: results, exit statuses, and what goes to which stream."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.testing.command_runs import run_opctl, run_synapse
from synapse_host.testing.running_host import RunningHost

BACKEND_KEYS = {
    "backend", "engine", "engine_version", "build_flags", "tasks", "dtypes", "device_class", "extra", "runnable",
    "reason", "owned", "families", "reason_detail", "message", "required", "observed",
}  # fmt: skip
LOAD_KEYS = {"job_id", "request_key", "state", "model_id", "fingerprint", "module_generation"}
OUTCOME_KEYS = {
    "model_id", "fingerprint", "certified", "certification_status", "blocking_reason", "certification", "performance",
}  # fmt: skip
VECTOR_KEYS = {"id", "vector", "tokens", "submitted_tokens", "truncated", "content_sha256", "submitted_sha256"}


@pytest.fixture(scope="module")
def own_host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A host of this file's own, for what changes it. No lane is ever good enough for it."""
    with RunningHost(tmp_path_factory.mktemp("home"), {"SYNAPSE_PROBE_EMBED_COSINE": "1.0"}) as running:
        yield running


def parsed(done: subprocess.CompletedProcess[str], status: Exit = Exit.OK) -> Any:
    """The one JSON document of a command that said nothing else."""
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """The rows of a command whose output is no terminal: column name -> field."""
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    header, *lines = [line.split("\t") for line in done.stdout.splitlines()]
    return [dict(zip(header, line, strict=True)) for line in lines]


# --- reading verbs ------------------------------------------------------------------------------------------------


def test_list(host: RunningHost) -> None:
    document = parsed(run_synapse("list", "--json", home=host.home))
    assert {"module_generation", "table_epoch", "alias_rows", "models"} <= set(document)
    shown = {row["model"]: row for row in rows(run_synapse("list", home=host.home))}
    for model in document["models"]:
        row = shown[model["model_id"]]
        assert (row["state"], row["dtype"], row["certified"]) == (model["state"], model["dtype"], "yes")
        assert row["fingerprint"] == model["fingerprints"][0]


def backends_in_time(home: Path) -> dict[str, Any]:
    """The rows by name, once no look at a backend took too long: one that did is kept by nobody and looked at again."""
    while True:
        document = parsed(run_synapse("backends", "--json", home=home))
        found = {row["backend"]: row for row in document["backends"]}
        if not any(row["reason_detail"] == "probe_timeout" for row in found.values()):
            return found


def test_backends_need_no_host_and_say_why_not(tmp_path: Path) -> None:
    found = backends_in_time(tmp_path / "none")
    assert all(set(row) == BACKEND_KEYS for row in found.values())
    assert found["cpu"]["runnable"]
    assert found["cpu"]["required"]
    assert found["cpu"]["observed"]["openvino"]
    for name in ("metal", "metal-decode", "ane", "cuda"):
        assert not found[name]["runnable"]
        assert found[name]["reason"] in ("worker_missing", "not_supported_on_platform", "device_missing")
        assert found[name]["message"]
    assert found["cuda"]["reason_detail"] in ("not_installed", "cuda_no_driver")
    shown = {row["backend"]: row for row in rows(run_synapse("backends", home=tmp_path / "none"))}
    assert shown["cpu"]["runs here"] == "yes"
    assert (shown["cuda"]["runs here"], shown["cuda"]["reason"]) == ("no", found["cuda"]["reason_detail"])


def test_embed_gives_the_vectors_and_identity_the_client_gets(host: RunningHost) -> None:
    texts = ["first text", "", "word " * 600]
    document = parsed(run_synapse("embed", "-m", "minilm", "--json", *texts, home=host.home))
    with host.client() as client:
        reply = client.embed_many("minilm", texts)
    assert set(document) == {
        "fingerprint", "table_epoch", "dims", "module_generation", "provenance", "vectors"
    }  # fmt: skip
    assert (document["fingerprint"], document["dims"]) == (reply.fingerprint, 384)
    assert all(set(item) == VECTOR_KEYS for item in document["vectors"])
    found = np.array([item["vector"] for item in document["vectors"]], np.float32)
    np.testing.assert_array_equal(found, reply.vectors)
    assert [item["id"] for item in document["vectors"]] == ["0", "1", "2"]
    assert [item["truncated"] for item in document["vectors"]] == [False, False, True]
    assert [item["submitted_tokens"] for item in document["vectors"]] == [4, 2, 602]


def test_embed_takes_the_lines_of_standard_input(host: RunningHost) -> None:
    typed = "one\n\nthree: Grüße\n"
    document = parsed(run_synapse("embed", "-m", "minilm", "--json", home=host.home, typed=typed.encode()))
    named = parsed(run_synapse("embed", "-m", "minilm", "--json", "one", "", "three: Grüße", home=host.home))
    assert document["vectors"] == named["vectors"]


def test_a_text_is_shown_as_it_is(host: RunningHost) -> None:
    (row,) = rows(run_synapse("embed", "-m", "minilm", "[bold]x[/] :smile:\tand a tab", home=host.home))
    assert row["text"] == "[bold]x[/] :smile: and a tab"


def test_search_finds_the_passage(host: RunningHost, tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text(
        "# Notes\n\nThe harbour master writes down every ship that enters at night.\n\n"
        "Bread needs flour, water, salt and a warm place to rise in.\n\nToo short.\n"
    )
    question = "how do I bake a loaf?"
    document = parsed(run_synapse("search", question, str(file), "-m", "minilm", "--json", home=host.home))
    assert set(document) == {"fingerprint", "matches"}
    first, second = document["matches"]
    assert set(first) == {"score", "truncated", "file", "line", "text"}
    assert (first["file"], first["line"], first["text"][:5]) == (str(file), 5, "Bread")
    assert first["score"] > second["score"]
    shown = run_synapse("search", question, str(tmp_path), "-m", "minilm", "--top", "1", home=host.home)
    assert shown.stdout == f"{first['score']:.3f} {file}:5\n{first['text']}\n"


def test_probe_report_and_model_status(host: RunningHost) -> None:
    report = parsed(run_opctl("probe-report", "--json", home=host.home))
    assert {"machine_profile_hash", "machine_profile", "lanes"} <= set(report)
    assert all(set(lane) >= OUTCOME_KEYS for lane in report["lanes"])
    assert {row["model"]: row["status"] for row in rows(run_opctl("probe-report", home=host.home))} == {
        "minilm": "certified",
        "minilm-f32": "certified",
    }
    status = parsed(run_opctl("model-status", "minilm", "--json", home=host.home))
    assert {"model_id", "fingerprint", "state", "engine", "task"} <= set(status)
    assert run_opctl("model-status", "minilm", home=host.home).stdout == f"minilm: {status['state']}\n"


# --- changing verbs -----------------------------------------------------------------------------------------------


def test_load_probe_and_unload(own_host: RunningHost, tiny_directory: Path) -> None:
    directory, home = str(tiny_directory), own_host.home
    loaded = parsed(run_synapse("load", directory, "--id", "tiny", "--pooling", "cls", "--json", home=home))
    assert set(loaded) == LOAD_KEYS
    assert (loaded["state"], loaded["model_id"]) == ("ready", "tiny")
    again = run_synapse("load", directory, "--id", "tiny", "--pooling", "cls", home=home)
    assert again.stdout == f"model tiny is loaded, not certified yet, fingerprint {loaded['fingerprint']}\n"
    other = parsed(run_synapse("load", directory, "--id", "tiny", "--no-normalize", "--json", home=home))
    assert other["fingerprint"] != loaded["fingerprint"]

    early = run_synapse("embed", "-m", "tiny", "text", home=home)
    assert (early.returncode, early.stdout) == (Exit.REFUSED, "")
    assert early.stderr.startswith("error: probe_required: ")

    probed = parsed(run_synapse("probe", "tiny", "--json", home=home), Exit.REFUSED)
    (lane,) = probed["lanes"]
    assert set(lane) == OUTCOME_KEYS
    assert not lane["certified"]
    assert "below 1.0" in lane["blocking_reason"]
    assert run_synapse("embed", "-m", "tiny", "text", home=home).stderr.startswith("error: not_certified: ")

    assert run_opctl("unload", "tiny", home=home).stdout == "tiny: unloaded\n"
    assert parsed(run_opctl("unload", "tiny", "--json", home=home))["state"] == "unloaded"


def test_a_load_that_fails_says_which_file(own_host: RunningHost, tmp_path: Path) -> None:
    done = run_synapse("load", str(tmp_path), home=own_host.home)
    assert (done.returncode, done.stdout) == (Exit.REFUSED, "")
    assert done.stderr.startswith("error: artifact_invalid: ")
    assert "model.safetensors" in done.stderr


# --- what can be wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("embed", "-m", "nobody", "x"), ("probe", "nobody")])
def test_a_refusal_is_one_line_with_its_code(host: RunningHost, command: tuple[str, ...]) -> None:
    done = run_synapse(*command, home=host.home)
    assert (done.returncode, done.stdout) == (Exit.REFUSED, "")
    assert done.stderr.startswith("error: unknown_model: ")
    assert "'nobody'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [("list",), ("embed", "-m", "minilm", "x"), ("load", "/"), ("probe", "x"), ("search", "q", "/dev/null", "-m", "x")],
    ids=lambda command: command[0],
)
def test_without_a_host_the_message_says_how_to_start_one(tmp_path: Path, command: tuple[str, ...]) -> None:
    if command[0] == "search":
        (tmp_path / "a.md").write_text("A paragraph that is long enough to be embedded by somebody.")
        command = ("search", "q", str(tmp_path / "a.md"), "-m", "x")
    done = run_synapse(*command, home=tmp_path)
    assert (done.returncode, done.stdout) == (Exit.NO_HOST, "")
    assert "synapse-host serve" in done.stderr


@pytest.mark.parametrize(
    ("command", "typed", "said"),
    [
        (("nosuch",), b"", "nosuch"),
        (("embed", "x"), b"", "--model"),
        (("embed", "-m", "x"), b"", "no text given"),
        (("embed", "-m", "x"), b"a\xff\n", "not UTF-8"),
        (("search", "q", "/nonexistent", "-m", "x"), b"", "/nonexistent"),
        (("search", "q", "/dev/null", "-m", "x"), b"", "no passage"),
        (("list", "--nosuch"), b"", "--nosuch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_command_line_is_status_two(tmp_path: Path, command: tuple[str, ...], typed: bytes, said: str) -> None:
    done = run_synapse(*command, home=tmp_path, typed=typed)
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("list",), ("backends",)], ids=" ".join)
def test_a_wrong_environment_is_status_two(command: tuple[str, ...]) -> None:
    done = run_synapse(*command, home="not/absolute")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert done.stderr.startswith("error: SYNAPSE_HOME='not/absolute'")


def test_a_second_host_does_not_start_and_names_the_first(host: RunningHost) -> None:
    done = run_synapse("serve", home=host.home)
    assert done.returncode == Exit.NOT_STARTED
    assert done.stderr.splitlines()[-1].startswith("error: another host serves this directory: pid ")
    assert str(host.process.pid) in done.stderr
    assert "Traceback" not in done.stderr
    assert parsed(run_synapse("list", "--json", home=host.home))["models"]


@pytest.mark.parametrize(
    ("text", "said"), [("[inline]\nmax_itms = 3\n", "max_itms"), ("[server\n", "TOML"), ("[nosuch]\n", "nosuch")]
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "synapse.toml"
    file.write_text(text)
    done = run_synapse("serve", "--config", str(file), home=tmp_path / "home")
    assert (done.returncode, done.stdout) == (Exit.NOT_STARTED, "")
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


def test_a_place_where_no_host_can_live_is_named() -> None:
    done = run_synapse("serve", home="/proc/nowhere")
    assert done.returncode == Exit.NOT_STARTED
    assert "/proc/nowhere" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("run", [run_synapse, run_opctl])
def test_without_a_command_there_is_help(run: Any, tmp_path: Path) -> None:
    done = run(home=tmp_path)
    assert done.returncode == Exit.USAGE
    assert "Commands" in done.stdout + done.stderr


def test_version(tmp_path: Path) -> None:
    assert run_synapse("--version", home=tmp_path).stdout.startswith("synapse-host ")
