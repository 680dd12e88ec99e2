"""What an operator finds in the log of a host: its workers' output, and figures for what happens to them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.running_host import RunningHost, load_model, python_path
from synapse_host.testing.workers.worker_processes import worker_pids

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found in /proc")
MODEL = "tiny"
#: A worker that says hello, and one line too many for each row it computes.
TALKS = """
import sys
if "synapse_host.worker" in sys.orig_argv:
    from synapse_host.worker import embedding
    sound = embedding.embed
    def talking(*args):
        sys.stderr.write("computing\\n" * 200)
        sys.stderr.flush()
        return sound(*args)
    embedding.embed = talking
"""
EXPECTED = {
    "load": r"INFO \S+: model 'tiny' loaded in \d+ ms: worker \d+, backend reference, f32, 32 dims, "
    r"fingerprint [0-9a-f]{64}",
    "output": r"INFO synapse_host.worker_output: synapse-reference-tiny-1 stderr: computing",
    "left out": r"WARNING \S+: \d+ lines of workers' output were left out",
    "probe": r"INFO \S+: probe of model 'tiny': certified, \d+ tokens/s, p50 \d+\.\d\d ms",
    "death": r"WARNING \S+: worker synapse-reference-tiny-1 \(pid \d+\) is dead after \d+\.\d s and \d+ requests "
    r"\(exited, signal SIGKILL\): ",
    "unload": r"INFO \S+: model 'tiny' unloaded: worker \d+ stopped after \d+\.\d s and \d+ requests",
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path], tiny_directory: Path) -> list[str]:
    """The log of a host that went through all of it."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "sitecustomize.py").write_text(TALKS)
    with RunningHost(certified(folder / "home"), python_path(folder)) as host, host.client() as client:
        client.embed_query(MODEL, "first")
        client.wait_for_probe(client.probe_start([MODEL])["job_id"])
        (pid,) = worker_pids(host.process.pid)
        os.kill(pid, signal.SIGKILL)
        assert wait_until_gone(pid)
        while client.model_status(model_id=MODEL)["state"] == "ready":
            pass  # the host reaps it first; the test's own limit is the deadline
        load_model(client, tiny_directory, engine="reference", model_id=MODEL, certify=False)
        client.model_unload(MODEL)
    return host.output


@pytest.mark.parametrize("what", EXPECTED)
def test_the_log_tells(log: list[str], what: str) -> None:
    assert [line for line in log if re.search(EXPECTED[what], line)], "".join(log)


def test_each_death_and_unload_has_one_line(log: list[str]) -> None:
    assert sum("is dead after" in line for line in log) == 1
    assert sum("unloaded: worker" in line for line in log) == 1


def test_a_flood_of_output_stays_within_its_rate(log: list[str]) -> None:
    shown = sum("stderr: computing" in line for line in log)
    left_out = sum(int(found[1]) for line in log if (found := re.search(r"(\d+) lines of workers' output", line)))
    assert 50 <= shown < left_out
    assert (shown + left_out) % 200 == 0, (shown, left_out)
