from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from synapse_host.server.request_tasks import RequestTasks

pytestmark = pytest.mark.anyio


def _nothing() -> None:
    """Nobody needs to hear of it."""


async def test_leaving_cancels_what_runs_and_waits_for_its_end() -> None:
    ended: list[int] = []

    async def answer(number: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            ended.append(number)

    async with RequestTasks(failed=_nothing, ended=_nothing) as tasks:
        for number in range(3):
            tasks.start(answer(number))
        await anyio.wait_all_tasks_blocked()
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "not begun"])
async def test_the_end_of_every_task_is_told(begun: bool) -> None:
    ended: list[None] = []
    async with RequestTasks(failed=_nothing, ended=lambda: ended.append(None)) as tasks:
        for _ in range(3):
            tasks.start(anyio.sleep_forever())
        if begun:
            await anyio.wait_all_tasks_blocked()
    assert len(ended) == 3


async def test_a_task_that_fails_is_told_and_raised() -> None:
    async def blunder() -> None:
        raise ZeroDivisionError("planted")

    async def connection() -> None:
        reading = anyio.CancelScope()
        async with RequestTasks(failed=reading.cancel, ended=_nothing) as tasks:
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
        async with RequestTasks(failed=_nothing, ended=_nothing) as tasks:
            tasks.start(answer())
            await anyio.sleep_forever()

    async with anyio.create_task_group() as connections:
        connections.start_soon(connection)
        await anyio.wait_all_tasks_blocked()
        connections.cancel_scope.cancel()
    assert ended.is_set()
