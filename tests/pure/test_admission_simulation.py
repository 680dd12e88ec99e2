"""The real queue and the real admission in virtual time: how long a query waits, what bulk gets, and who is late."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from synapse_host.admission.work_class import WorkClass
from synapse_host.testing.admission_simulation import Outcome, Request, Scenario, Simulation

INTERACTIVE, BULK, JOB = WorkClass.INTERACTIVE, WorkClass.BULK, WorkClass.JOB
SEEDS = 100
TURNS = 800
#: Bulk groups of which a query may wait for two, in 99 of 100 cases; the one that runs when it comes counts as one.
MOST_GROUPS = 2

SATURATING_BULK = {
    "one job": Scenario(burst_every_ms=400, burst_quiet_ms=200, jobs=1),
    "four jobs and two batches": Scenario(burst_every_ms=400, burst_quiet_ms=200, jobs=4, batches_always=2),
}
OVERLAPPING = {
    name: Scenario(burst_every_ms=500, jobs=it.jobs, batches_always=it.batches_always)
    for name, it in SATURATING_BULK.items()
}
SATURATING_QUERIES = {
    "short ones": Scenario(queries_always=4, jobs=1),
    "ones as long as a group": Scenario(queries_always=4, query_ms=80.0, jobs=2),
    "slow ones": Scenario(queries_always=3, query_ms=400.0, jobs=1, batches_always=1),
}
DEADLINES = {
    "loose": Scenario(burst_every_ms=60, jobs=2, batch_every_ms=900),
    "tight": Scenario(
        burst_every_ms=40,
        burst_most=6,
        jobs=1,
        batch_every_ms=800,
        query_deadlines=(20, 400),
        batch_deadlines=(100, 2000),
    ),
    "now and then a batch": Scenario(
        burst_every_ms=150,
        burst_most=40,
        batch_every_ms=1500,
        query_deadlines=(20, 600),
        batch_deadlines=(200, 4000),
    ),
    "jobs that come and go": Scenario(
        burst_every_ms=300,
        burst_most=6,
        batch_every_ms=700,
        job_every_ms=3000,
        query_deadlines=(20, 600),
        batch_deadlines=(100, 3000),
    ),
    "slow queries": Scenario(
        query_ms=120.0, burst_every_ms=900, jobs=1, batch_every_ms=1200, query_deadlines=(200, 2000)
    ),
}


def runs(scenario: Scenario, turns: int = TURNS) -> dict[int, Outcome]:
    """Seed -> what it gave."""
    return {seed: Simulation(scenario, seed).run(turns) for seed in range(SEEDS)}


def worst(outcomes: dict[int, Outcome], figure: Callable[[Outcome], float]) -> tuple[float, int]:
    """The largest figure and its seed."""
    return max((figure(outcome), seed) for seed, outcome in outcomes.items())


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def queries(outcomes: dict[int, Outcome]) -> list[tuple[Request, float]]:
    """Every query that began, with what a group took on average in its run."""
    return [(it, outcome.mean_group_ms) for outcome in outcomes.values() for it in outcome.started(INTERACTIVE)]


@pytest.mark.parametrize("name", SATURATING_BULK)
def test_a_query_waits_for_two_bulk_groups_at_most(name: str) -> None:
    outcomes = runs(SATURATING_BULK[name])
    begun = queries(outcomes)
    p99_ms = percentile((it.start_delay_ms / group_ms for it, group_ms in begun), 0.99)
    p99_groups = percentile((it.bulk_groups for it, _ in begun), 0.99)
    figure, seed = worst(outcomes, lambda it: it.delay_ms(INTERACTIVE, 0.99) / it.mean_group_ms)
    print(
        f"{name}: p99 start delay of {len(begun)} queries {p99_ms:.2f} mean group times, {p99_groups:.0f} groups; "
        f"worst seed {seed}: {figure:.2f}"
    )
    assert len(begun) > 100 * SEEDS
    assert p99_ms <= MOST_GROUPS
    assert p99_groups <= MOST_GROUPS


@pytest.mark.parametrize("name", OVERLAPPING)
def test_bursts_that_overlap_wait_for_no_more_groups(name: str) -> None:
    outcomes = runs(OVERLAPPING[name])
    p99 = percentile((it.bulk_groups for it, _ in queries(outcomes)), 0.99)
    most, seed = worst(outcomes, lambda it: max(query.bulk_groups for query in it.started(INTERACTIVE)))
    print(f"{name}: p99 {p99:.0f} groups; worst seed {seed}: at most {most:.0f}")
    assert p99 <= MOST_GROUPS


@pytest.mark.parametrize("name", SATURATING_QUERIES)
def test_bulk_gets_a_fifth_of_the_turns_under_any_number_of_queries(name: str) -> None:
    outcomes = runs(SATURATING_QUERIES[name])
    share, seed = worst(outcomes, lambda it: -it.bulk_share)
    print(f"{name}: worst seed {seed}: bulk has {-share:.3f} of the turns")
    assert -share >= 0.2


@pytest.mark.parametrize("name", DEADLINES)
def test_an_admitted_request_is_late_only_where_estimates_were_wrong_by_more_than_the_factor(name: str) -> None:
    outcomes = runs(DEADLINES[name], turns=500)
    admitted = sum(len(it.requests) for it in outcomes.values())
    late = sum(len(it.late) for it in outcomes.values())
    without_reason, seed = worst(outcomes, lambda it: len(it.late_without_reason))
    refused = sum(it.refused for it in outcomes.values())
    print(
        f"{name}: {admitted} admitted, {refused} refused, {late} late; worst seed {seed}: {without_reason} for nothing"
    )
    assert admitted > 10 * SEEDS
    assert without_reason == 0
    assert late <= 0.02 * admitted


@pytest.mark.parametrize("name", DEADLINES)
def test_nobody_is_late_where_estimates_are_right(name: str) -> None:
    it = DEADLINES[name]
    exact = {slot: getattr(it, slot) for slot in Scenario.__slots__} | {"spread": 0.0}
    outcomes = runs(Scenario(**exact), turns=250)
    assert sum(len(outcome.late) for outcome in outcomes.values()) == 0


@pytest.mark.parametrize(("named", "known"), [(True, True), (True, False), (False, True), (False, False)])
def test_an_idle_device_refuses_only_by_named_deadlines_and_known_estimates(named: bool, known: bool) -> None:
    # Queries and batches are expected to take longer than most of the deadlines.
    scenario = Scenario(
        query_ms=120.0,
        burst_every_ms=900,
        batch_every_ms=1200,
        query_deadlines=(20, 200),
        batch_deadlines=(50, 400),
        named=named,
        known=known,
    )
    outcomes = runs(scenario, turns=100)
    idle = sum(it.refused_idle for it in outcomes.values())
    refused = sum(it.refused for it in outcomes.values())
    print(f"named {named}, known {known}: {idle} refused on an idle device, of {refused}")
    assert (idle > 0) is (named and known)
    assert all(it.refused > it.refused_idle for it in outcomes.values()), "behind others estimates decide for everybody"


def test_everybody_gets_on_over_a_hundred_thousand_turns() -> None:
    no_starvation(100_000, seed=1)


def no_starvation(turns: int, seed: int) -> None:
    """Everything saturated at once: no turn waits for more others than the rule lets go before it."""
    scenario = Scenario(queries_always=3, jobs=3, batches_always=2)
    outcome = Simulation(scenario, seed).run(turns)
    longest = outcome.longest_wait_turns
    print(
        f"{turns} turns: longest waits { ({str(k): v for k, v in longest.items()}) }, job groups {outcome.job_groups}"
    )
    # Of three queries the last has two before it, and a bulk turn before each; jobs and batches have the ones of their
    # kind before them, as many of the other kind between, and three queries before each.
    assert longest[INTERACTIVE] <= 2 * scenario.queries_always
    assert longest[JOB] <= 4 * 2 * (scenario.jobs + 1)
    assert longest[BULK] <= 4 * 2 * (scenario.batches_always + 1)
    assert max(outcome.job_groups) - min(outcome.job_groups) <= 1
    assert outcome.bulk_share >= 0.2
