from __future__ import annotations

import asyncio
import time

import anyio
import anyio.lowlevel
import pytest

from synapse_host.time_limits import Limit, TimeLimits

pytestmark = pytest.mark.anyio
SOON, NEVER = 0.02, 60.0
DEADLINE_S = 30


class CountingLimits(TimeLimits):
    """Counts the timers it sets."""

    timers = 0

    def _arm(self, due: float) -> None:
        self.timers += 1
        super()._arm(due)


async def test_a_limit_that_is_reached_interrupts_its_block() -> None:
    with anyio.fail_after(DEADLINE_S):
        with pytest.raises(TimeoutError), TimeLimits().limit(SOON):
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()  # and nothing is left of the cancellation


async def test_a_lifted_limit_interrupts_nobody() -> None:
    limits = TimeLimits()
    with limits.limit(SOON):
        pass
    with anyio.move_on_after(5 * SOON) as waited:
        await anyio.sleep_forever()
    assert waited.cancelled_caught


async def test_a_renewed_limit_counts_from_its_renewal() -> None:
    async def renew_and_wait() -> None:
        with TimeLimits().limit(NEVER) as limit:
            limit.renew(SOON)
            limit.renew(5 * SOON)
            await anyio.sleep_forever()

    started = time.monotonic()
    with anyio.fail_after(DEADLINE_S), pytest.raises(TimeoutError):
        await renew_and_wait()
    assert time.monotonic() - started >= 5 * SOON


async def test_limits_ring_in_the_order_they_are_due_whatever_order_they_were_set_in() -> None:
    limits, due, order = TimeLimits(), list[float](), list[float]()

    async def wait(seconds: float) -> None:
        try:
            with limits.limit(seconds) as limit:
                due.append(limit.due)
                await anyio.sleep_forever()
        except TimeoutError:
            order.append(limit.due)

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for times in (3, 1, 4, 2):
                tasks.start_soon(wait, times * SOON)
    # Not in the order of their seconds: between two of them the process may have stood still for longer than that.
    assert order == sorted(due)
    assert due != order


async def test_many_limits_need_one_timer() -> None:
    limits = CountingLimits()
    for _ in range(1000):
        with limits.limit(NEVER):
            pass
    assert limits.timers == 1


@pytest.mark.parametrize("native", [True, False])
async def test_another_cancellation_passes_through(native: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            with TimeLimits().limit(NEVER):
                await anyio.sleep_forever()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    if native:
        task = asyncio.get_running_loop().create_task(work())
        await anyio.wait_all_tasks_blocked()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert ended == ["cancelled"]


async def test_a_limit_reached_in_a_cancelled_task_leaves_it_cancelled() -> None:
    entered: list[Limit] = []

    async def work() -> None:
        with TimeLimits().limit(NEVER) as limit:
            entered.append(limit)
            await anyio.sleep_forever()

    task = asyncio.get_running_loop().create_task(work())
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    entered[0].reach()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_closing_takes_the_timer_back() -> None:
    limits = TimeLimits()
    loop = asyncio.get_running_loop()
    with limits.limit(600):
        pass
    timer = limits._timer
    assert timer is not None
    limits.close()
    limits.close()
    assert timer.cancelled()
    with limits.limit(600):
        assert limits._timer is not None
        assert limits._timer.when() > loop.time()
    limits.close()
