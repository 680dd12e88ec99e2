"""Every misbehaviour in every operation: one typed error, the right strikes, nothing left, the next request served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.testing.workers.misbehaving_worker import MISBEHAVIOURS
from synapse_host.testing.workers.misbehaviour_cases import OPERATIONS, cases
from synapse_host.testing.workers.misbehaviour_matrix import Outcome, play_all

CASES = {case.name: case for case in cases()}
#: Cases played in one go.
BLOCK = 32
#: Not one error of one request; each has tests of its own.
ELSEWHERE = {"floods", "grows", "leaves_a_holder", "small_frames", "wait_at_gate"}


@pytest.fixture(scope="module")
def outcome_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Plays cases side by side, as most of each is waiting for a child; a block at a time, for another process of the
    test run may be asked for the rest."""
    played: dict[str, Outcome] = {}
    names = list(CASES)

    def find(name: str) -> Outcome:
        if name not in played:
            start = names.index(name) // BLOCK * BLOCK
            block = [CASES[each] for each in names[start : start + BLOCK]]
            outcomes = anyio.run(play_all, block, tmp_path_factory.mktemp("matrix"))
            played.update({outcome.case.name: outcome for outcome in outcomes})
        return played[name]

    return find


@pytest.mark.parametrize("name", CASES)
def test_a_misbehaviour_is_one_typed_error_and_the_next_request_is_served(
    outcome_of: Callable[[str], Outcome], name: str
) -> None:
    assert outcome_of(name).problem is None


def test_the_matrix_leaves_no_operation_and_no_misbehaviour_out() -> None:
    assert {case.operation for case in CASES.values()} == set(OPERATIONS)
    assert {case.kind for case in CASES.values()} == set(MISBEHAVIOURS) - ELSEWHERE


def test_what_a_case_does_not_expect_is_a_problem() -> None:
    case = CASES["EMBED_BATCH-silence"]
    error = EngineCrashed("EMBED_BATCH reported no completed work", details={"reason": "silence"})
    good = Outcome(case, error, 1, served=True)
    assert good.problem is None
    wrong = [
        replace(good, error=None),
        replace(good, error=EngineCrashed("reported no completed work", details={"reason": "exited"})),
        replace(good, error=EngineCrashed("ended", details={"reason": "silence"})),
        replace(good, strikes=2),
        replace(good, served=False),
        replace(good, left="worker 7 is left"),
        replace(good, broken="TimeoutError: "),
    ]
    assert all(outcome.problem for outcome in wrong)
