"""Every way a plugin can be broken, each run in the real bounded child beside a good one."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from synapse_host.backends.backend_row import BackendRow, rows_as_json
from synapse_host.backends.capability import probe_all, probe_backend
from synapse_host.backends.discovery import BackendEntry, list_backends
from synapse_host.backends.probe_child import run_probe_child
from synapse_host.backends.probe_report import ChildOutcome
from synapse_host.testing.fake_distributions import backend_source, install_backend, install_distribution

EMBED = "@hookimpl\ndef synapse_embed("
PROBE_BODY = 'return CapabilityEvidence("ok", required={"cores": 1}, observed={"cores": 2})'
DESCRIBE_BODY = "return BackendDescription("


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that this process and its children import from."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def entry(name: str) -> BackendEntry:
    return next(found for found in list_backends() if found.name == name)


def ended_within(pid: int, seconds: float) -> bool:
    """Whether a process that is no child of ours is gone, or goes within ``seconds``."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


#: id: (the fault to plant in "bad", as arguments of backend_source; reason_detail; a word of the error text)
BROKEN = {
    "exits at import": ({"before": "import os\nos._exit(3)"}, "probe_failed", "status 3"),
    "crashes at import": ({"before": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"}, "probe_failed", "11"),
    "raises at import": ({"before": "raise RuntimeError('no such library')"}, "import_failed", "no such library"),
    "leaves by sys.exit": ({"before": "import sys\nsys.exit('goodbye')"}, "import_failed", "goodbye"),
    "does not parse": ({"before": "def broken(:"}, "import_failed", "SyntaxError"),
    "imports what is missing": ({"before": "import no_such_driver"}, "import_failed", "no_such_driver"),
    "describe raises": (
        {"old": DESCRIBE_BODY, "new": "raise OSError('gone')\n    BackendDescription("},
        "describe_failed",
        "gone",
    ),
    "describe returns a dict": ({"old": DESCRIBE_BODY, "new": "return dict("}, "description_invalid", "a dict"),
    "describes another backend": ({"old": 'backend="bad"', "new": 'backend="good"'}, "description_invalid", "'good'"),
    "tasks is text": ({"old": 'tasks=("embed",)', "new": 'tasks="embed"'}, "description_invalid", "tasks"),
    "undecorated hook": ({"old": EMBED, "new": "def synapse_embed("}, "hooks_invalid", "synapse_embed lacks"),
    "generator hook": (
        {"old": "def synapse_unload(model):\n", "new": "def synapse_unload(model):\n    yield 1\n"},
        "hooks_invalid",
        "synapse_unload is a generator",
    ),
    "misspelt hook": ({"old": "synapse_embed(", "new": "synapse_embd("}, "hooks_invalid", "mean synapse_embed?"),
    "wrong argument name": ({"old": "synapse_embed(model,", "new": "synapse_embed(modle,"}, "hooks_invalid", "'modle'"),
    "missing required hook": (
        {"old": "@hookimpl\ndef synapse_probe_capability", "new": "def probe"},
        "hooks_invalid",
        "synapse_probe_capability is missing",
    ),
    "missing hook of a task": (
        {"old": EMBED, "new": "def embed("},
        "hooks_invalid",
        "synapse_embed is not implemented",
    ),
    "other plugin API": ({"old": "plugin_api=1", "new": "plugin_api=2"}, "plugin_api_mismatch", "plugin API 2"),
    "probe raises": ({"old": PROBE_BODY, "new": "raise OSError('no bus')"}, "probe_failed", "no bus"),
    "probe leaves by sys.exit": ({"old": PROBE_BODY, "new": "raise SystemExit(0)"}, "probe_failed", "SystemExit"),
    "probe exits with success": ({"old": PROBE_BODY, "new": "import os; os._exit(0)"}, "probe_failed", "status 0"),
    "probe returns None": ({"old": PROBE_BODY, "new": "return None"}, "evidence_invalid", "None"),
    "probe refuses without reason": (
        {"old": 'CapabilityEvidence("ok"', "new": 'CapabilityEvidence("refused"'},
        "evidence_invalid",
        "reason",
    ),
    "facts without JSON form": ({"old": '{"cores": 2}', "new": '{"cores": object()}'}, "evidence_invalid", "JSON"),
    "facts past the limit": ({"old": '{"cores": 2}', "new": '{"cores": "x" * 9000}'}, "evidence_invalid", "4096"),
}  # fmt: skip


@pytest.mark.anyio
@pytest.mark.parametrize("fault", BROKEN)
async def test_a_broken_plugin_is_a_row_with_reason_text_and_remedy(fault: str, site: Path, cache: Path) -> None:
    planted, detail, text = BROKEN[fault]
    install_backend(site, "bad", backend_source("bad", **planted))
    row = await probe_backend(entry("bad"), cache_dir=cache)
    assert (row.runnable, row.reason, row.reason_detail) == (False, "worker_missing", detail), row
    assert text in str(row.message)
    assert "uninstall fake-bad 1.0" in str(row.message)


@pytest.mark.anyio
async def test_a_module_without_hooks_is_told_which_it_needs(site: Path, cache: Path) -> None:
    install_backend(site, "bad", "x = 1\n")
    row = await probe_backend(entry("bad"), cache_dir=cache)
    assert (row.reason, row.reason_detail) == ("worker_missing", "hooks_invalid")
    assert "synapse_describe is missing" in str(row.message)


@pytest.mark.anyio
async def test_a_good_plugin_is_a_runnable_row(site: Path, cache: Path) -> None:
    install_backend(site, "good", backend_source("good"))
    row = await probe_backend(entry("good"), cache_dir=cache)
    assert row.runnable, row
    assert row.description is not None
    assert (row.description.engine, row.description.build_flags) == ("engine-of-good", {"kind": "fake"})
    assert row.evidence is not None
    assert (row.evidence.required, row.evidence.observed) == ({"cores": 1}, {"cores": 2})


@pytest.mark.anyio
async def test_broken_plugins_hide_no_good_one(site: Path, cache: Path) -> None:
    install_backend(site, "bad", backend_source("bad", before="import os\nos._exit(3)"))
    install_backend(site, "worse", backend_source("worse", before="import sys\nsys.exit(1)"))
    install_backend(site, "good", backend_source("good"))
    install_distribution(site, "torn", entry_points="[synapse_host.backends]\nno equals sign\n", files={})
    rows = {row.backend: row for row in await probe_all(cache_dir=cache)}
    assert rows["good"].runnable, rows["good"]
    assert {name: rows[name].reason_detail for name in ("bad", "worse", "torn")} == {
        "bad": "probe_failed",
        "worse": "import_failed",
        "torn": "metadata_unreadable",
    }
    assert not rows["cuda"].runnable
    assert [row["backend"] for row in rows_as_json(list(rows.values()))] == sorted(rows)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "hang",
    [
        "import time\ntime.sleep(600)",
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)",
        "while True:\n    pass",
    ],
    ids=["sleeps", "ignores SIGTERM", "spins"],
)
async def test_a_plugin_that_hangs_for_ever_is_stopped(hang: str, site: Path, cache: Path) -> None:
    install_backend(site, "bad", backend_source("bad", before=f"print('reached the hang')\n{hang}"))
    row = await probe_backend(entry("bad"), cache_dir=cache, timeout_s=2.0)
    assert (row.reason, row.reason_detail) == ("worker_missing", "probe_timeout"), row
    assert "within 2 s" in str(row.message)
    assert "uninstall fake-bad 1.0" in str(row.message)


@pytest.mark.anyio
async def test_megabytes_of_prints_corrupt_no_answer_and_are_not_kept(site: Path, cache: Path) -> None:
    loud = (
        "import os, sys\n"
        "print('x' * 3_000_000)\n"
        "os.write(1, b'y' * 3_000_000)\n"
        "sys.stderr.write('z' * 3_000_000 + ' the end')\n"
        "import atexit\natexit.register(print, 'late')\n"
    )
    install_backend(site, "loud", backend_source("loud", before=loud))
    row = await probe_backend(entry("loud"), cache_dir=cache)
    assert row.runnable, row
    assert len(row.stderr_tail) <= 8192
    assert row.stderr_tail.rstrip("x\n").endswith(" the end")


@pytest.mark.anyio
async def test_an_answer_of_megabytes_is_stopped(site: Path, cache: Path) -> None:
    # The plugin looks for the saved descriptor on purpose: nothing that merely prints gets this far.
    flood = (
        "import os\nfor number in range(3, 20):\n    try: os.write(number, b'x' * 3_000_000)\n    except OSError: pass"
    )
    install_backend(site, "bad", backend_source("bad", before=flood))
    row = await probe_backend(entry("bad"), cache_dir=cache)
    assert (row.reason, row.reason_detail) == ("worker_missing", "probe_output_too_large"), row


FORK = """
import os, time
pid = os.fork()
if pid == 0:
    time.sleep(600)
    os._exit(0)
with open(PATH, "w") as note:
    note.write(str(pid))
"""


@pytest.mark.anyio
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to watch a process that is no child")
async def test_a_grandchild_that_keeps_the_pipes_open_is_ended_with_the_probe(site: Path, cache: Path) -> None:
    note = site / "grandchild"
    install_backend(site, "good", backend_source("good", before=FORK.replace("PATH", repr(str(note)))))
    row = await probe_backend(entry("good"), cache_dir=cache)
    assert row.runnable, row
    assert ended_within(int(note.read_text()), 30)


@pytest.mark.anyio
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux to watch a process that is no child")
async def test_a_probe_given_up_leaves_no_child(tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    hang = f"import os, time\nwith open({str(fifo)!r}, 'w') as note: note.write(str(os.getpid()))\ntime.sleep(600)"
    command = [sys.executable, "-c", hang]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: run_probe_child("any", command=command))
        pid = int(await anyio.to_thread.run_sync(fifo.read_text))
        tasks.cancel_scope.cancel()
    assert ended_within(pid, 30)


@pytest.mark.anyio
async def test_a_non_daemon_thread_does_not_keep_the_answer_waiting(site: Path, cache: Path) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    install_backend(site, "good", backend_source("good", before=thread))
    row = await probe_backend(entry("good"), cache_dir=cache)
    assert row.runnable, row


@pytest.mark.anyio
async def test_a_child_that_cannot_be_started_is_an_outcome() -> None:
    outcome = await run_probe_child("any", command=["/no/such/interpreter"])
    assert (outcome.ending, outcome.exit_code) == ("not_started", None)
    assert "/no/such/interpreter" in outcome.stderr_tail


@pytest.mark.anyio
async def test_a_file_of_the_working_directory_is_never_imported(
    site: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "good", backend_source("good"))
    (tmp_path / "pluggy.py").write_text("raise SystemExit('the wrong pluggy')")
    monkeypatch.chdir(tmp_path)
    assert (await probe_backend(entry("good"), cache_dir=cache)).runnable


REFUSAL = (
    'return CapabilityEvidence("refused", required={"driver_api": 12040}, observed={"driver_api": 11000}, '
    'reason="device_below_floor", reason_detail="driver_too_old", message="install driver 550 or newer")'
)


@pytest.mark.anyio
async def test_a_refusal_keeps_its_facts_through_child_and_cache(site: Path, cache: Path) -> None:
    install_backend(site, "old", backend_source("old", PROBE_BODY, REFUSAL))
    first = await probe_backend(entry("old"), cache_dir=cache)
    second = await probe_backend(entry("old"), cache_dir=cache)
    for row in (first, second):
        (shown,) = rows_as_json([row])
        assert (shown["runnable"], shown["reason"], shown["reason_detail"]) == (
            False,
            "device_below_floor",
            "driver_too_old",
        )
        assert (shown["required"], shown["observed"]) == ({"driver_api": 12040}, {"driver_api": 11000})
        assert shown["message"] == "install driver 550 or newer"
        assert shown["engine"] == "engine-of-old"


class CountingChild:
    """The real child, counted."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, backend: str, timeout_s: float) -> ChildOutcome:
        self.count += 1
        return await run_probe_child(backend, timeout_s=timeout_s)


async def _row(name: str, cache: Path, children: CountingChild, *, refresh: bool = False) -> BackendRow:
    return await probe_backend(entry(name), cache_dir=cache, run_child=children, refresh=refresh)


@pytest.mark.anyio
async def test_a_second_probe_starts_no_child(site: Path, cache: Path) -> None:
    install_backend(site, "good", backend_source("good"))
    children = CountingChild()
    first = await _row("good", cache, children)
    second = await _row("good", cache, children)
    assert children.count == 1
    assert (second.description, second.evidence) == (first.description, first.evidence)
    await _row("good", cache, children, refresh=True)
    assert children.count == 2


@pytest.mark.anyio
async def test_a_touched_module_is_probed_again(site: Path, cache: Path) -> None:
    module = install_backend(site, "good", backend_source("good"))
    children = CountingChild()
    await _row("good", cache, children)
    os.utime(module, ns=(1, 1))
    await _row("good", cache, children)
    await _row("good", cache, children)
    assert children.count == 2


@pytest.mark.anyio
async def test_a_changed_record_is_probed_again(site: Path, cache: Path) -> None:
    install_backend(site, "good", backend_source("good"))
    children = CountingChild()
    await _row("good", cache, children)
    record = site / "fake_good-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "another.py,,\n")
    await _row("good", cache, children)
    assert children.count == 2


NAMED = (
    "import os\n    from synapse_host.hookspecs import Premises\n    return CapabilityEvidence("
    "'ok', {}, {'driver': os.environ.get('CHOSEN_DRIVER')}, premises=Premises(('CHOSEN_DRIVER',)))"
)


@pytest.mark.anyio
async def test_a_plugin_is_asked_anew_when_a_variable_it_names_changed(
    site: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_backend(site, "good", backend_source("good", PROBE_BODY, NAMED))
    seen = []
    for driver in ("one", "two"):
        monkeypatch.setenv("CHOSEN_DRIVER", driver)
        row = await probe_backend(entry("good"), cache_dir=cache)
        assert row.evidence is not None, row
        seen.append(row.evidence.observed["driver"])
    assert seen == ["one", "two"]


@pytest.mark.anyio
async def test_a_corrupt_cache_file_is_ignored_and_written_anew(site: Path, cache: Path) -> None:
    install_backend(site, "good", backend_source("good"))
    children = CountingChild()
    await _row("good", cache, children)
    (kept,) = (cache / "capability").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert (await _row("good", cache, children)).runnable
    assert children.count == 2
    assert [file.read_bytes() for file in (cache / "capability").iterdir()] == [whole]


@pytest.mark.anyio
async def test_a_repaired_plugin_is_believed_at_once(site: Path, cache: Path) -> None:
    """A missing library is repaired without touching the plugin, so its failure is not kept."""
    install_backend(site, "bad", backend_source("bad", before="import the_missing_library"))
    assert not (await probe_backend(entry("bad"), cache_dir=cache)).runnable
    (site / "the_missing_library.py").write_text("")
    assert (await probe_backend(entry("bad"), cache_dir=cache)).runnable
