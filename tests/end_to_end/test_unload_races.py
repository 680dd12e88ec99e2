"""Unloading beside everything else that may happen to a lane at that moment. The worker is held still meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client.blocking_client import Client
from synapse_host.errors import ModelInUse
from synapse_host.testing.raw_peer import RawPeer
from synapse_host.testing.running_host import RunningHost
from synapse_host.testing.workers.worker_processes import worker_pids

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found in /proc"),
]

MODEL, TEXT = "tiny", "the tide came in"
EMBED = {"id": "embed", "method": "embed.query", "params": {"model": MODEL, "text": TEXT}}
UNLOAD = {"id": "unload", "method": "model.unload", "params": {"model_id": MODEL}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certified: Callable[[Path], Path]) -> Iterator[RunningHost]:
    with RunningHost(certified(tmp_path_factory.mktemp("unload-races"))) as running:
        yield running


@pytest.fixture
def client(host: RunningHost) -> Iterator[Client]:
    with host.client() as connected:
        connected.embed_query(MODEL, TEXT)
        yield connected


@pytest.fixture(scope="module")
def vectors(host: RunningHost) -> np.ndarray:
    with host.client() as client:
        return client.embed_query(MODEL, TEXT).vectors


@asynccontextmanager
async def held_unload(host: RunningHost) -> AsyncIterator[RawPeer]:
    """An unload that has begun and waits for a worker that stands still; the worker goes on when the block ends."""
    (pid,) = worker_pids(host.process.pid)
    os.kill(pid, signal.SIGSTOP)
    peer = await RawPeer.connect(host.socket)
    try:
        await peer.send(UNLOAD)
        listed = await peer.ask({"id": "look", "method": "models.list"})
        assert [row["state"] for row in listed["result"]["models"]] == ["unloading"]
        yield peer
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        await peer.close()


def numbers(answer: dict[str, Any]) -> np.ndarray:
    return np.array([item["vector"] for item in answer["result"]["vectors"]], dtype=np.float32)


async def test_a_client_that_leaves_does_not_leave_the_lane_half_unloaded(
    host: RunningHost, client: Client, vectors: np.ndarray
) -> None:
    before = worker_pids(host.process.pid)
    async with held_unload(host) as peer:
        await peer.close()
        for _ in range(20):
            assert client.models_list()["models"][0]["state"] == "unloading"
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)
    (worker,) = worker_pids(host.process.pid)
    assert [worker] != before, "the worker of the unload must be gone, not forgotten"
    assert client.model_unload(MODEL)["state"] == "unloaded"


async def test_a_request_that_meets_an_unload_waits_and_is_served(
    host: RunningHost, client: Client, vectors: np.ndarray
) -> None:
    asking = await RawPeer.connect(host.socket)
    async with held_unload(host):
        await asking.send(EMBED)
        assert (await asking.ask({"id": "look", "method": "models.list"}))["id"] == "look"
    np.testing.assert_array_equal(numbers(await asking.receive()), vectors)
    await asking.close()


async def test_a_deadline_holds_while_the_lane_unloads(host: RunningHost, client: Client) -> None:
    asking = await RawPeer.connect(host.socket)
    async with held_unload(host):
        params = {**EMBED["params"], "deadline_ms": 50}  # type: ignore[dict-item]
        answer = await asking.ask({**EMBED, "params": params})
        assert answer["result"]["error"]["code"] == "deadline_exceeded"
        assert "50" in answer["result"]["error"]["message"]
    await asking.close()


async def test_two_unloads_at_once_are_one(host: RunningHost, client: Client, vectors: np.ndarray) -> None:
    other = await RawPeer.connect(host.socket)
    async with held_unload(host) as peer:
        await other.send(UNLOAD)
        assert (await other.ask({"id": "look", "method": "models.list"}))["id"] == "look"
        (pid,) = worker_pids(host.process.pid)
        os.kill(pid, signal.SIGCONT)
        for waiting in (peer, other):
            assert (await waiting.receive())["result"]["state"] == "unloaded"
    await other.close()
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


async def test_a_load_that_meets_an_unload_ends_ready(
    host: RunningHost, client: Client, tiny_directory: Path, vectors: np.ndarray
) -> None:
    async with held_unload(host):
        job = client.model_load(source="file", path=str(tiny_directory), engine="reference", model_id=MODEL)
    assert client.wait_for_load(job["job_id"])["state"] == "ready"
    np.testing.assert_array_equal(client.embed_query(MODEL, TEXT).vectors, vectors)


async def test_a_lane_that_serves_is_not_unloaded(host: RunningHost, client: Client) -> None:
    (pid,) = worker_pids(host.process.pid)
    peer = await RawPeer.connect(host.socket)
    os.kill(pid, signal.SIGSTOP)
    try:
        await peer.send(EMBED)
        refused = (await peer.ask(UNLOAD))["result"]["error"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (refused["code"], refused["class"]) == ("model_in_use", "permanent")
    assert [holder["kind"] for holder in refused["details"]["holders"]] == ["request"]
    assert "vectors" in (await peer.receive())["result"]
    await peer.close()


def test_a_lane_under_probe_is_not_unloaded(client: Client) -> None:
    job = client.probe_start([MODEL])["job_id"]
    with pytest.raises(ModelInUse, match=MODEL) as caught:
        client.model_unload(MODEL)
    assert caught.value.details == {"model_id": MODEL, "holders": [{"kind": "job", "job_id": job}]}
    assert client.wait_for_probe(job)["lanes"][0]["certified"]
    assert client.model_unload(MODEL)["state"] == "unloaded"
