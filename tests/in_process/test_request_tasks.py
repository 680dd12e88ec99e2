from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from synapse_host.server.request_tasks import RequestTasks

pytestmark = pytest.mark.anyio


async def test_leaving_cancels_what_runs_and_waits_for_its_end() -> None:
    ended: list[int] = []

    async def answer(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            ended.append(number)

    async with RequestTasks(failed=lambda: None) as tasks:
        for number in range(3):
            tasks.start(answer(number))
        await anyio.wait_all_tasks_blocked()
    assert sorted(ended) == [0, 1, 2]


async def test_a_task_that_fails_is_told_and_raised() -> None:
    async def blunder() -> None:
        raise ZeroDivisionError("planted")

    async def connection() -> None:
        reading = anyio.CancelScope()
        async with RequestTasks(failed=reading.cancel) as tasks:
            tasks.start(blunder())
            with reading:
                await anyio.sleep_forever()

    with anyio.fail_after(30), pytest.raises(ZeroDivisionError, match="planted"):
        await connection()


async def test_a_cancelled_connection_ends_its_tasks() -> None:
    ended = anyio.Event()

    async def answer() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async def connection() -> None:
        async with RequestTasks(failed=lambda: None) as tasks:
            tasks.start(answer())
            await anyio.sleep_forever()

    async with anyio.create_task_group() as connections:
        connections.start_soon(connection)
        await anyio.wait_all_tasks_blocked()
        connections.cancel_scope.cancel()
    assert ended.is_set()
