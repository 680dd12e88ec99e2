"""Long texts in threads: the deadline ends the wait, and the bytes stay charged until the thread is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.gate import Budget, Gate
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import DeadlineExceeded
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_pace import LanePace
from synapse_host.operations.constraints import BudgetRule
from synapse_host.operations.serving import ServingDesk
from synapse_host.operations.tokenising import INLINE_TOKENIZING_CHARS, TokenisingPool
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio
LANE = cast("Lane", SimpleNamespace(model=SimpleNamespace(model_id="m"), pace=LanePace()))
LONG = INLINE_TOKENIZING_CHARS + 1


def desk() -> ServingDesk:
    clock: Callable[[], float] = time.monotonic
    rule = BudgetRule(deadline_ms=1000, max_queue_ms=1000, clock=clock)
    # Nobody comes in through the door here.
    return ServingDesk(cast("Any", None), Gate(byte_budget=1000, clock=clock), AliasTable(), rule, 1)


def budget(deadline_ms: int) -> Budget:
    return Budget(time.monotonic() + deadline_ms / 1000, deadline_ms, 1000)


async def test_a_deadline_ends_the_wait_and_the_bytes_go_when_the_thread_does() -> None:
    it, done, begun = desk(), threading.Event(), threading.Event()

    def reading() -> None:
        begun.set()
        assert done.wait(60)

    async def let_it_pass() -> None:
        await until(begun.is_set)
        (limit,) = it.deadlines._set
        limit.reach()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(let_it_pass)
        with (
            pytest.raises(DeadlineExceeded, match="deadline_ms of 9000 passed before model 'm' had its text tokenised"),
            it.gate.hold(700) as hold,
        ):
            await it.tokenised(LANE, budget(9000), hold, LONG, reading)
    assert it.gate.bytes_in_flight == 700
    done.set()
    await until(lambda: it.gate.bytes_in_flight == 0)
    it.tokenising.close()


async def test_a_client_that_goes_away_leaves_at_once_too() -> None:
    it, done, begun = desk(), threading.Event(), threading.Event()

    def reading() -> None:
        begun.set()
        assert done.wait(60)

    async def ask() -> None:
        with it.gate.hold(700) as hold:
            await it.tokenised(LANE, budget(60_000), hold, LONG, reading)

    async with anyio.create_task_group() as callers:
        callers.start_soon(ask)
        await until(begun.is_set)
        callers.cancel_scope.cancel()
    assert it.gate.bytes_in_flight == 700
    done.set()
    await until(lambda: it.gate.bytes_in_flight == 0)
    it.tokenising.close()


async def test_what_never_began_gives_its_bytes_back_as_well() -> None:
    it, done = desk(), threading.Event()
    pool = it.tokenising

    async def ask(work: Callable[[], Any], deadline_ms: int) -> None:
        with it.gate.hold(1) as hold:
            await it.tokenised(LANE, budget(deadline_ms), hold, LONG, work)

    async with anyio.create_task_group() as callers:
        for _ in range(64):
            callers.start_soon(ask, lambda: done.wait(60), 60_000)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(DeadlineExceeded):
            await ask(lambda: pytest.fail("nobody waits for this one"), 1)
        await until(lambda: it.gate.bytes_in_flight == 64)
        done.set()
    await until(lambda: it.gate.bytes_in_flight == 0)
    pool.close()


async def test_what_a_thread_raises_is_its_callers() -> None:
    it = desk()

    def broken() -> None:
        raise KeyError("tokens")

    with pytest.raises(KeyError), it.gate.hold(1) as hold:
        await it.tokenised(LANE, budget(60_000), hold, LONG, broken)
    await until(lambda: it.gate.bytes_in_flight == 0)
    it.tokenising.close()


async def test_a_short_text_needs_no_thread() -> None:
    it = desk()
    with it.gate.hold(1) as hold:
        name = await it.tokenised(LANE, budget(1000), hold, 10, lambda: threading.current_thread().name)
    assert name == threading.current_thread().name


def test_closing_a_pool_that_was_never_used_is_harmless() -> None:
    TokenisingPool().close()
