"""Admission of one request as the methods meet it: decided on what its lane is expected to take, and on that alone."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.estimates import ENOUGH, Costs
from synapse_host.admission.gate import Budget, Gate
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import DeadlineExceeded
from synapse_host.lanes.group_run import GroupPlan
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_pace import LanePace
from synapse_host.operations.constraints import BudgetRule, Constraints
from synapse_host.operations.lane_door import LaneDoor
from synapse_host.operations.registry import RequestContext
from synapse_host.operations.serving import ServingDesk

pytestmark = pytest.mark.anyio


def lane() -> Lane:
    """What a desk sees of a lane that computed 100 tokens in 40 ms often enough to know it."""
    it = SimpleNamespace(model=SimpleNamespace(model_id="m"), turns=DeviceTurns(), costs=Costs(25.0), pace=LanePace())
    it.compiling = lambda plan: None
    for _ in range(ENOUGH):
        it.costs.learn("embed", 100, 40.0)
    return cast("Lane", it)


def plan(it: Lane, *tokens: int, work_class: WorkClass = WorkClass.INTERACTIVE) -> GroupPlan:
    groups = [[place] for place in range(len(tokens))]
    estimates = [it.costs.ms("embed", each) for each in tokens]
    return GroupPlan("embed", work_class, groups, tokens, estimates, known=it.costs.known("embed", tokens))


def desk() -> ServingDesk:
    rule = BudgetRule(deadline_ms=1000, max_queue_ms=1000, clock=time.monotonic)
    gate = Gate(byte_budget=1000, clock=time.monotonic)
    return ServingDesk(cast("LaneDoor", None), gate, AliasTable(), rule, 1)


def budget(deadline_ms: int, max_queue_ms: int = 1000) -> Budget:
    return Budget(time.monotonic() + deadline_ms / 1000, deadline_ms, max_queue_ms)


async def answered() -> str:
    return "computed"


async def test_a_request_is_judged_by_what_its_lane_was_seen_to_take() -> None:
    it, at = lane(), desk()
    assert await at.computed(it, budget(500), plan(it, 100), answered) == "computed"
    with pytest.raises(DeadlineExceeded, match=r"would finish in 80 ms, and \d+ ms are left of its deadline_ms of 60"):
        await at.computed(it, budget(60), plan(it, 100, 100), answered)


async def test_refusals_on_an_idle_device_wear_the_estimate_down_until_one_gets_in() -> None:
    it, at = lane(), desk()
    for _ in range(ENOUGH):
        it.costs.learn("embed", 5000, 90_000.0)
    refused = 0
    while True:
        try:
            await at.computed(it, budget(30_000), plan(it, 5000), answered)
            break
        except DeadlineExceeded:
            refused += 1
    assert 5 <= refused <= 15


async def test_an_idle_device_takes_a_request_that_named_no_deadline_whatever_it_is_expected_to_take() -> None:
    it, at = lane(), desk()
    for _ in range(ENOUGH):
        it.costs.learn("embed", 5000, 90_000.0)
    constraints, received = Constraints(max_queue_ms=0), RequestContext(time.monotonic())
    assert await at.computed(it, at.budgets.of(constraints, received), plan(it, 5000), answered) == "computed"
    named = Constraints(deadline_ms=at.budgets.deadline_ms)
    with pytest.raises(DeadlineExceeded, match="left of its deadline_ms of 1000"):
        await at.computed(it, at.budgets.of(named, received), plan(it, 5000), answered)


async def test_the_first_slow_batch_of_a_cold_machine_refuses_nobody() -> None:
    it, at = lane(), desk()
    it.costs.learn("embed", 5000, 90_000.0)
    assert await at.computed(it, budget(500), plan(it, 5000), answered) == "computed"


async def test_a_busy_device_says_nothing_against_an_estimate() -> None:
    it, at = lane(), desk()
    it.turns.ask(Turn(lambda: None, WorkClass.BULK, 40_000.0))
    for _ in range(20):
        with pytest.raises(DeadlineExceeded, match="past its max_queue_ms of 100"):
            await at.computed(it, budget(90_000, max_queue_ms=100), plan(it, 100), answered)
    assert it.costs.ms("embed", 100) == pytest.approx(40.0)


async def test_a_deadline_missed_by_an_admitted_request_is_held_against_its_lane() -> None:
    it, at = lane(), desk()

    assert it.pace.meets_deadlines(time.monotonic())
    with pytest.raises(DeadlineExceeded, match="passed before model 'm' answered"):
        await at.computed(it, budget(400), plan(it, 100), anyio.sleep_forever)
    assert not it.pace.meets_deadlines(time.monotonic())
