from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.lanes.executor import LaneExecutor

pytestmark = pytest.mark.anyio
DEADLINE_S = 5


@asynccontextmanager
async def serving(permits: anyio.Semaphore | None = None) -> AsyncIterator[LaneExecutor]:
    executor = LaneExecutor(permits or anyio.Semaphore(1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(executor.serve)
        with anyio.fail_after(DEADLINE_S):
            yield executor
        tasks.cancel_scope.cancel()


class Exchange:
    """One piece of work that runs until it is let go."""

    def __init__(self, answer: bytes = b"done") -> None:
        self.answer = answer
        self.started = anyio.Event()
        self.release = anyio.Event()
        self.finished = False

    async def __call__(self) -> bytes:
        self.started.set()
        await self.release.wait()
        self.finished = True
        return self.answer


async def test_work_is_carried_out_in_the_order_it_came() -> None:
    order: list[int] = []

    def numbered(number: int):  # type: ignore[no-untyped-def]
        async def run() -> bytes:
            order.append(number)
            return bytes([number])

        return run

    async with serving() as executor, anyio.create_task_group() as callers:
        for number in range(5):
            callers.start_soon(executor.execute, numbered(number))
    assert order == [0, 1, 2, 3, 4]


async def test_a_refusal_reaches_its_caller_and_the_next_is_served() -> None:
    async def refuse() -> bytes:
        raise EngineCrashed("gone")

    async def answer() -> bytes:
        return b"next"

    async with serving() as executor:
        with pytest.raises(EngineCrashed, match="gone"):
            await executor.execute(refuse)
        assert await executor.execute(answer) == b"next"


async def test_a_caller_that_gives_up_leaves_the_running_exchange_alone() -> None:
    async with serving() as executor:
        work = Exchange()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as callers:
                callers.start_soon(executor.execute, work)
                await work.started.wait()
                scope.cancel()
        assert executor.running == 1
        work.release.set()
        after = Exchange(b"after")
        after.release.set()
        assert await executor.execute(after) == b"after"
        assert work.finished


async def test_work_that_was_given_up_before_its_start_is_dropped() -> None:
    async with serving() as executor:
        first, second = Exchange(), Exchange()
        async with anyio.create_task_group() as callers:
            callers.start_soon(executor.execute, first)
            await first.started.wait()
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as impatient:
                    impatient.start_soon(executor.execute, second)
                    await anyio.wait_all_tasks_blocked()
                    assert executor.waiting == 1
                    scope.cancel()
            first.release.set()
        assert not second.started.is_set()
        assert executor.idle


async def test_lanes_of_one_device_take_turns() -> None:
    permits = anyio.Semaphore(1)
    async with serving(permits) as one, serving(permits) as two, anyio.create_task_group() as callers:
        first, second = Exchange(), Exchange()
        callers.start_soon(one.execute, first)
        await first.started.wait()
        assert not two.idle
        callers.start_soon(two.execute, second)
        await anyio.wait_all_tasks_blocked()
        assert not second.started.is_set()
        first.release.set()
        await second.started.wait()
        second.release.set()


async def test_the_next_group_is_sent_before_the_caller_of_the_last_one_is_told() -> None:
    order: list[str] = []
    async with serving(anyio.Semaphore(1, fast_acquire=True)) as executor, anyio.create_task_group() as callers:
        first = Exchange()

        async def caller() -> None:
            await executor.execute(first)
            order.append("told")

        async def second() -> bytes:
            await anyio.lowlevel.checkpoint()  # as the task that owns the worker's connection needs one to send
            order.append("sent")
            return b""

        callers.start_soon(caller)
        await first.started.wait()
        callers.start_soon(executor.execute, second)
        await anyio.wait_all_tasks_blocked()
        first.release.set()
    assert order == ["sent", "told"]
