"""A real lane on real processes while everything happens to it at once, each step after a random delay.

A failure names its seed; the delays and the order of the operations come from it, the scheduling of the machine does
not, so a race may need a few runs to show again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.errors import EngineCrashed, ModelInUse, ModelLoading, ProbeRequired
from synapse_host.lanes.group_run import GroupRun
from synapse_host.lanes.residency import Residency
from synapse_host.supervision.socket_stream import SocketStream
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_process import WorkerProcess
from synapse_host.testing.lock_watch import LockOrderBroken, watched_locks
from synapse_host.testing.workers.running_worker import PATIENCE_S, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector
from synapse_host.testing.workers.stub_lane import StubLane, stub_lane

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEEDS, OPERATIONS, CALLERS = range(6), 12, 6
#: Steps of the shells that get delays of their own.
SLOWED: list[tuple[Any, str]] = [
    *((Worker, "_bury"), (WorkerProcess, "end")),
    *((Residency, "_start_serving"), (Residency, "_stop"), (GroupRun, "wait")),
]
#: What may come of a request or of an operator's wish while others kill, load and unload.
LAWFUL = (EngineCrashed, ModelInUse, ModelLoading, ProbeRequired)


class Storm:
    """Callers that each do a few random things to one lane."""

    def __init__(self, stub: StubLane, draw: random.Random) -> None:
        self.stub, self.draw = stub, draw
        self.served = 0
        self.came_of: dict[str, int] = {}
        self.acts = [*[self.embed] * 3, self.embed_and_leave, self.unload, self.kill, self.ping, self.recycle]
        self._tokens = 0

    async def delay(self) -> None:
        """Nothing, a turn of the loop, or a few milliseconds."""
        roll = self.draw.random()
        await anyio.sleep(0 if roll < 0.6 else self.draw.random() * 0.02)

    async def caller(self) -> None:
        for _ in range(OPERATIONS):
            await self.delay()
            act: Callable[[], Awaitable[None]] = self.draw.choice(self.acts)
            try:
                await act()
            except LAWFUL as refused:
                name = type(refused).__name__
                self.came_of[name] = self.came_of.get(name, 0) + 1

    async def embed(self) -> None:
        lane = self.stub.lane
        self._tokens += 1
        rows = [[self._tokens, place] for place in range(self.draw.randint(1, 20))]
        lane.refuse_quarantined()
        with lane.lease():
            await lane.load()
            await self.delay()
            _, data = await lane.embed(rows, [str(place) for place in range(len(rows))])
        vectors = memoryview(data).cast("f").tolist()
        assert vectors == [value for row in rows for value in stub_vector(row, 4)]
        self.served += 1

    async def embed_and_leave(self) -> None:
        with anyio.move_on_after(self.draw.random() * 0.02):
            await self.embed()

    async def unload(self) -> None:
        await self.stub.lane.unload()

    async def kill(self) -> None:
        if self.stub.workers and self.stub.worker.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.stub.worker.pid, signal.SIGKILL)

    async def ping(self) -> None:
        self.stub.lane.refresh_health()

    async def recycle(self) -> None:
        if not self.stub.lane._holders:
            self.stub.lane._residency.start_recycling()


def delayed(original: Callable[..., Awaitable[Any]], storm: Storm) -> Callable[..., Awaitable[Any]]:
    """``original`` after a delay; never a delay after it, where its caller may count on nothing coming between."""

    async def late(*args: Any, **named: Any) -> Any:
        await storm.delay()
        return await original(*args, **named)

    return late


def read_late(read: Callable[[SocketStream], None], storm: Storm) -> Callable[[SocketStream], None]:
    """``read`` some turns of the loop later, which calls it again for as long as there is something to read."""

    def late(stream: SocketStream) -> None:
        if storm.draw.random() < 0.5:
            read(stream)

    return late


async def next_vector(stub: StubLane) -> list[float]:
    """What the next request gets; the last kill may not have been noticed yet, and costs one request more."""
    try:
        return await stub.embed([7])
    except EngineCrashed:
        await stub.settled()
        return await stub.embed([7])


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_lane_in_a_storm_serves_the_next_request(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched_locks() as watch, anyio.fail_after(4 * PATIENCE_S):
        async with stub_lane(stub_spec(tmp_path)) as stub:
            storm = Storm(stub, random.Random(seed))
            for owner, name in SLOWED:
                monkeypatch.setattr(owner, name, delayed(getattr(owner, name), storm))
            monkeypatch.setattr(SocketStream, "_read", read_late(SocketStream._read, storm))
            async with anyio.create_task_group() as callers:
                for _ in range(CALLERS):
                    callers.start_soon(storm.caller)
            if stub.lane.strikes.quarantined:
                await stub.lane.unload()
            assert await next_vector(stub) == stub_vector([7], 4)
            assert stub.lane.turns.free
            assert [worker for worker in stub.workers if worker.alive] == [stub.worker]
            print(f"seed {seed}: {storm.served} served, {storm.came_of}, {len(stub.workers)} workers, {watch.taken}")
    assert storm.served


async def test_two_locks_in_swapped_order_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane is loaded, which may wait for an unload, by somebody who has the device's turn already."""
    wait, lanes = GroupRun.wait, []

    async def swapped(self: GroupRun, *args: Any) -> Any:
        await lanes[0]._residency.recycling_over()
        return await wait(self, *args)

    monkeypatch.setattr(GroupRun, "wait", swapped)
    caught = None
    try:
        with watched_locks() as watch:
            async with stub_lane(stub_spec(tmp_path)) as stub:
                lanes.append(stub.lane)
                with pytest.raises(LockOrderBroken):
                    await stub.embed([1])
    except LockOrderBroken as broken:
        caught = str(broken)
    assert caught is not None
    assert "takes 'lane change' while it holds 'device turn'" in caught
    assert watch.taken["device turn"] == 1
