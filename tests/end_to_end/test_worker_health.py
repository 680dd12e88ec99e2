"""``synapse-opctl status`` on a real host, and a real worker that leaks and is replaced while clients ask."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.testing.command_runs import run_opctl
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.running_host import RunningHost, python_path
from synapse_host.testing.workers.worker_processes import worker_pids

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found in /proc")
MODEL, TEXT = "tiny", "the tide came in"
#: Every batch a worker computes costs it 64 MiB it never gives back.
LEAK = """
import sys
if "synapse_host.worker" in sys.orig_argv:
    from synapse_host.worker import hook_calls
    from synapse_host.worker import embedding
    sound, kept = embedding.embed, []
    def leaking(*args):
        kept.append(b"x" * (64 << 20))
        return sound(*args)
    embedding.embed = leaking
"""


def lane_of(client: Client) -> dict[str, Any]:
    (row,) = client.call("admission.status")["health"]["lanes"]
    return dict(row)


def lane_once(client: Client, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The lane's row as soon as it meets ``condition``; the test's own limit is the deadline."""
    while not condition(row := lane_of(client)):
        pass
    return row


@pytest.fixture
def host(tmp_path: Path, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    with RunningHost(certified(tmp_path / "home"), {"SYNAPSE_WORKER_PING_INTERVAL_S": "0.05"}) as running:
        yield running


def test_status_shows_the_host_and_the_worker_of_each_model(host: RunningHost) -> None:
    shown = run_opctl("status", home=host.home)
    assert shown.stdout.splitlines()[1].split("\t")[:4] == [MODEL, "unloaded", "-", "-"]
    with host.client() as client:
        client.embed_query(MODEL, TEXT)
        row = lane_once(client, lambda row: row["rss_mib"] is not None)
        document = json.loads(run_opctl("status", "--json", home=host.home).stdout)
        (lane,) = document["health"]["lanes"]
        (pid,) = worker_pids(host.process.pid)
        assert (lane["worker_pid"], lane["dims"], lane["rows_computed"], lane["strikes"]) == (pid, 32, 1, 0)
        assert (document["host"]["pid"], document["host"]["connections"]) == (host.process.pid, 2)
        assert (
            document["health"]["loaded_worker_models"] == document["catalog_lanes"] == document["certified_lanes"] == 1
        )
        assert document["lanes"][0]["certified"]
        real = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        assert abs(row["rss_mib"] - real) < 32
    header, line = run_opctl("status", home=host.home).stdout.splitlines()
    fields = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert (fields["model"], fields["state"], fields["pid"], fields["quarantined"]) == (MODEL, "ready", str(pid), "no")


def test_a_frozen_worker_holds_up_no_status(host: RunningHost) -> None:
    with host.client() as client:
        client.embed_query(MODEL, TEXT)
        row = lane_once(client, lambda row: row["last_ping_age_ms"] is not None)
        os.kill(row["worker_pid"], signal.SIGSTOP)
        lane_once(client, lambda row: row["last_ping_age_ms"] > 300)
        os.kill(row["worker_pid"], signal.SIGCONT)
        lane_once(client, lambda row: row["last_ping_age_ms"] < 300)
        assert lane_of(client)["strikes"] == 0


def test_a_dead_worker_is_seen_and_its_strike_shown(host: RunningHost) -> None:
    with host.client() as client:
        client.embed_query(MODEL, TEXT)
        os.kill(lane_of(client)["worker_pid"], signal.SIGKILL)
        row = lane_once(client, lambda row: row["state"] == "unloaded")
        assert (row["worker_pid"], row["rss_mib"], row["strikes"]) == (None, None, 1)
        client.embed_query(MODEL, TEXT)
        assert lane_of(client)["strikes"] == 0


def test_a_leaking_worker_is_replaced_and_no_caller_notices(tmp_path: Path, certified: Callable[[Path], Path]) -> None:
    (tmp_path / "sitecustomize.py").write_text(LEAK)
    settings = {"SYNAPSE_WORKER_PING_INTERVAL_S": "0.05", "SYNAPSE_WORKER_RECYCLE_RSS_MIB": "400"}
    with RunningHost(certified(tmp_path / "home"), python_path(tmp_path) | settings) as host, host.client() as client:
        first = client.embed_query(MODEL, TEXT).vectors
        pids = {lane_once(client, lambda row: row["rss_mib"] is not None)["worker_pid"]}
        for _ in range(25):
            np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, first)
            pids.add(lane_of(client)["worker_pid"])
        row = lane_once(client, lambda row: row["state"] == "ready" and row["recycled"] >= 1)
        assert (row["strikes"], row["quarantined"], row["rows_computed"]) == (0, False, 26)
        gone = pids - {row["worker_pid"], None}
        assert gone
        assert all(wait_until_gone(pid) for pid in gone)
        assert host.says("recycling")
