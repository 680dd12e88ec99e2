"""Kills a lane's worker and asks again, over and over, and watches what this process holds meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel

from synapse_host.errors import EngineCrashed
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.workers.running_worker import PATIENCE_S, stub_spec
from synapse_host.testing.workers.stub_answers import stub_vector
from synapse_host.testing.workers.stub_lane import StubLane, stub_lane

_ROW = (3, 5, 8)
_DIMS = 4


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds, right after a served request: a worker, its connection and its output pipes included."""

    descriptors: int
    children: int
    tasks: int
    objects: int
    resident_kib: int


def holdings() -> Holdings:
    """Look now. Linux only."""
    gc.collect()
    children = [task / "children" for task in Path("/proc/self/task").iterdir()]
    return Holdings(
        len([*Path("/proc/self/fd").iterdir()]),
        sum(len(path.read_text().split()) for path in children),
        len(asyncio.all_tasks()),
        len(gc.get_objects()),
        int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024,
    )


async def crash_cycles(
    folder: Path, cycles: int, *, every: int, looked: Callable[[int, Holdings], None] | None = None
) -> list[Holdings]:
    """Let ``cycles`` workers be killed, in turn at rest and with a request in their hands, and serve after each.

    The holdings after each ``every`` cycles, the first taken before any; ``looked`` is told of them too.

    Raises:
        AssertionError: a request after a crash was not served, or a worker was left.

    """
    seen: list[Holdings] = []
    async with stub_lane(stub_spec(folder)) as stub:
        for cycle in range(cycles + 1):
            with anyio.fail_after(PATIENCE_S):
                assert await stub.embed(_ROW) == stub_vector(list(_ROW), _DIMS)
            assert stub.lane.strikes.count == 0
            if cycle % every == 0:
                seen.append(holdings())
                if looked is not None:
                    looked(cycle, seen[-1])
            with anyio.fail_after(PATIENCE_S):
                await (_kill_at_work(stub) if cycle % 2 else _kill_at_rest(stub))
            del stub.workers[:-1]
    return seen


async def _kill_at_rest(stub: StubLane) -> None:
    os.kill(stub.worker.pid, signal.SIGKILL)
    await stub.settled()
    assert stub.lane.strikes.count == 1
    assert wait_until_gone(stub.worker.pid)


async def _kill_at_work(stub: StubLane) -> None:
    """A stopped worker keeps its request until it is killed."""
    worker, told = stub.worker, []

    async def ask() -> None:
        try:
            await stub.embed(_ROW)
        except EngineCrashed as crash:
            told.append(crash)

    os.kill(worker.pid, signal.SIGSTOP)
    async with anyio.create_task_group() as callers:
        callers.start_soon(ask)
        while stub.lane.turns.free:
            await anyio.lowlevel.checkpoint()
        os.kill(worker.pid, signal.SIGKILL)
    assert [crash.details["exit"] for crash in told if crash.details] == ["signal SIGKILL"]
    await stub.settled()
    assert wait_until_gone(worker.pid)


def slope(values: Sequence[float]) -> float:
    """How much ``values`` grow from one to the next: the least-squares line through them."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
