"""Workers die, are killed and outlive nobody; what the callers see is typed, and the host serves on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import EngineCrashed, ProbeRequired
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.workers.worker_processes import worker_pids

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found in /proc"),
]

MODEL, TEXT = "tiny", "the tide came in"
GONE_WITHIN_S = 2.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    with RunningHost(certified(tmp_path_factory.mktemp("worker-death"))) as running:
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    """A connection to a host whose lane is loaded, without strikes, and answers as it always did."""
    with host.client() as connected:
        connected.model_unload(MODEL)
        connected.embed_query(MODEL, TEXT)
        yield connected
        connected.model_unload(MODEL)
        assert host.process.poll() is None


@pytest.fixture(scope="module")
def vectors(host: RunningHost) -> np.ndarray:
    with host.client() as client:
        return client.embed_query(MODEL, TEXT).vectors


def check_crash(error: dict[str, Any]) -> None:
    assert error["code"] == "engine_crashed"
    assert (error["class"], error["safe_to_retry_same_request"]) == ("transient", True)
    assert error["retry_after_ms"] > 0
    assert error["details"]["exit"] == "signal SIGKILL"
    assert set(error["details"]) == {"worker_id", "reason", "exit", "output_tail"}


async def hand_over(peer: RawPeer, requests: int = 1) -> None:
    """Send requests and wait until they hold the lane: a connection's requests are begun in the order they came."""
    for number in range(requests):
        await peer.send({"id": number, "method": "embed.query", "params": {"model": MODEL, "text": TEXT}})
    assert (await peer.ask({"id": "look", "method": "models.list"}))["id"] == "look"


async def die_while_serving(host: RunningHost, requests: int = 1) -> list[dict[str, Any]]:
    """Kill the worker with ``requests`` in its hands or waiting for it; the errors they got."""
    (pid,) = worker_pids(host.process.pid)
    peer = await RawPeer.connect(host.socket)
    os.kill(pid, signal.SIGSTOP)
    await hand_over(peer, requests)
    os.kill(pid, signal.SIGKILL)
    answers = [await peer.receive() for _ in range(requests)]
    await peer.close()
    return [answer["result"]["error"] for answer in answers]


def test_a_worker_killed_at_rest_is_replaced(host: RunningHost, client: Client, vectors: np.ndarray) -> None:
    (pid,) = worker_pids(host.process.pid)
    os.kill(pid, signal.SIGKILL)
    assert wait_until_gone(pid)
    try:
        first = client.embed_query(MODEL, TEXT).vectors
    except EngineCrashed as crash:
        check_crash(crash.to_wire())
        first = client.embed_query(MODEL, TEXT).vectors
    np.testing.assert_array_equal(first, vectors)


async def test_a_death_while_serving_is_typed_and_the_next_request_is_served(
    host: RunningHost, client: Client, vectors: np.ndarray
) -> None:
    (error,) = await die_while_serving(host)
    check_crash(error)
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


async def test_one_death_is_one_strike_however_many_were_waiting(
    host: RunningHost, client: Client, vectors: np.ndarray
) -> None:
    for error in await die_while_serving(host, requests=5):
        assert error["code"] == "engine_crashed"
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


async def test_served_work_between_two_deaths_clears_the_first(host: RunningHost, client: Client) -> None:
    for _ in range(3):
        await die_while_serving(host)
        client.embed_query(MODEL, TEXT)


async def quarantine(host: RunningHost, client: Client, directory: Path) -> None:
    """Two deaths with a load between them, which clears nothing."""
    await die_while_serving(host)
    load_model(client, directory, engine="reference", model_id=MODEL, certify=False)
    await die_while_serving(host)


async def test_two_deaths_in_a_row_quarantine_until_the_lane_is_unloaded(
    host: RunningHost, client: Client, tiny_directory: Path, vectors: np.ndarray
) -> None:
    await quarantine(host, client, tiny_directory)
    for _ in range(2):
        with pytest.raises(ProbeRequired, match=MODEL) as caught:
            client.embed_query(MODEL, TEXT)
        assert caught.value.details == {"lane_id": MODEL, "quarantined": True}
        assert caught.value.error_class == "permanent"
    assert worker_pids(host.process.pid) == []
    client.model_unload(MODEL)
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


@pytest.mark.parametrize("cure", ["load", "probe"])
async def test_a_new_load_or_a_good_probe_ends_the_quarantine(
    host: RunningHost, client: Client, tiny_directory: Path, vectors: np.ndarray, cure: str
) -> None:
    await quarantine(host, client, tiny_directory)
    if cure == "load":
        load_model(client, tiny_directory, engine="reference", model_id=MODEL, certify=False)
    else:
        client.wait_for_probe(client.probe_start([MODEL])["job_id"])
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


def test_workers_do_not_outlive_a_killed_host(tmp_path: Path, tiny_directory: Path) -> None:
    with RunningHost(tmp_path) as host, host.client() as client:
        for name in ("one", "two"):
            load_model(client, tiny_directory, engine="reference", model_id=name, certify=False)
        workers = worker_pids(host.process.pid)
        assert len(workers) == 2
        host.kill()
        for pid in workers:
            assert wait_until_gone(pid, GONE_WITHIN_S)


def test_a_frozen_worker_does_not_outlive_a_killed_host(tmp_path: Path, tiny_directory: Path) -> None:
    """It cannot notice the end of its socket; the kernel sees to it."""
    with RunningHost(tmp_path) as host, host.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id=MODEL, certify=False)
        (pid,) = worker_pids(host.process.pid)
        os.kill(pid, signal.SIGSTOP)
        host.kill()
        assert wait_until_gone(pid, GONE_WITHIN_S)


async def test_a_stop_while_a_request_runs_answers_it_and_refuses_new_ones(
    tmp_path: Path, certified: Callable[[Path], Path]
) -> None:
    with RunningHost(certified(tmp_path)) as host, host.client() as client:
        client.embed_query(MODEL, TEXT)
        (pid,) = worker_pids(host.process.pid)
        peer = await RawPeer.connect(host.socket)
        os.kill(pid, signal.SIGSTOP)
        await hand_over(peer)
        host.process.send_signal(signal.SIGTERM)
        while "error" not in (refused := await peer.ask({"id": "late", "method": "models.list"}))["result"]:
            assert refused["id"] == "late"
        assert refused["result"]["error"]["code"] == "queue_full"
        os.kill(pid, signal.SIGCONT)
        answer = await peer.receive()
        await peer.close()
        assert host.process.wait(60) == 0, "".join(host.output)
    assert len(answer["result"]["vectors"][0]["vector"]) == 32


async def test_a_stop_ends_a_request_that_cannot_be_answered_by_closing(
    tmp_path: Path, certified: Callable[[Path], Path]
) -> None:
    with RunningHost(certified(tmp_path), {"SYNAPSE_SERVER_DRAIN_S": "0.1"}) as host, host.client() as client:
        client.embed_query(MODEL, TEXT)
        (pid,) = worker_pids(host.process.pid)
        peer = await RawPeer.connect(host.socket)
        os.kill(pid, signal.SIGSTOP)
        await hand_over(peer)
        host.process.send_signal(signal.SIGTERM)
        assert await peer.is_closed()
        await peer.close()
        assert host.process.wait(60) == 0, "".join(host.output)
        assert wait_until_gone(pid, GONE_WITHIN_S)


def test_a_stop_in_the_middle_of_a_probe_harms_no_certification(
    tmp_path: Path, certified: Callable[[Path], Path]
) -> None:
    host = RunningHost(certified(tmp_path))
    with host, host.client() as client:
        before = client.probe_report()["lanes"][0]["certification"]
        client.probe_start([MODEL])
        while len(worker_pids(host.process.pid)) < 2:
            client.models_list()
        assert host.stop() == 0, "".join(host.output)
    with host, host.client() as client:
        assert client.probe_report()["lanes"][0]["certification"] == before
        assert client.embed_query(MODEL, TEXT).dims == 32
