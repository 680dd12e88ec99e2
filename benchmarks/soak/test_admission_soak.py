"""A million turns with everything saturated at once: nobody waits for more others than the rule lets go before him."""

from __future__ import annotations

from synapse_host.admission.work_class import WorkClass
from synapse_host.testing.admission_simulation import Scenario, Simulation

TURNS = 1_000_000


def test_everybody_gets_on_over_a_million_turns() -> None:
    scenario = Scenario(queries_always=3, jobs=3, batches_always=2)
    outcome = Simulation(scenario, seed=2).run(TURNS)
    longest = outcome.longest_wait_turns
    print(f"{TURNS} turns: longest waits { ({str(kind): most for kind, most in longest.items()}) }")
    assert sum(outcome.turns.values()) == TURNS
    assert longest[WorkClass.INTERACTIVE] <= 2 * scenario.queries_always
    assert longest[WorkClass.JOB] <= 4 * 2 * (scenario.jobs + 1)
    assert longest[WorkClass.BULK] <= 4 * 2 * (scenario.batches_always + 1)
    assert max(outcome.job_groups) - min(outcome.job_groups) <= 1
