"""Whose turn is next: control, three interactive to one bulk, ageing, and nobody for ever last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.admission.fair_queue import AGEING_S, INTERACTIVE_IN_A_ROW, FairQueue
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import BULK_KINDS, WorkClass

CONTROL, INTERACTIVE, BULK, JOB = WorkClass.CONTROL, WorkClass.INTERACTIVE, WorkClass.BULK, WorkClass.JOB
LETTERS = {CONTROL: "C", INTERACTIVE: "I", BULK: "B", JOB: "J"}


def turn(work_class: WorkClass, *, continues: bool = False, keeps_back: tuple[WorkClass, ...] = ()) -> Turn:
    return Turn(lambda: None, work_class, continues=continues, keeps_back=keeps_back)


def order(queue: FairQueue, *, turn_s: float = 0.001, start: float = 0.0) -> str:
    """The classes of everything in the queue as it leaves, each computed for ``turn_s`` before the next."""
    letters, now = "", start
    while (taken := queue.take(now)) is not None:
        letters += LETTERS[taken.work_class]
        now += turn_s
        queue.ended(taken.work_class, now)
    return letters


def holding(*classes: WorkClass) -> FairQueue:
    queue = FairQueue()
    for work_class in classes:
        queue.put(turn(work_class), 0.0)
    return queue


def test_three_interactive_turns_to_one_of_bulk() -> None:
    assert order(holding(*[BULK] * 3, *[INTERACTIVE] * 8)) == "IIIBIIIBIIB"


def test_control_goes_first_and_changes_nothing_else() -> None:
    assert order(holding(*[BULK] * 2, *[INTERACTIVE] * 4, CONTROL)) == "CIIIBIB"


def test_who_waits_alone_goes_at_once() -> None:
    assert order(holding(BULK, BULK)) == "BB"
    assert order(holding(INTERACTIVE)) == "I"
    assert FairQueue().take(0.0) is None


def test_after_a_bulk_turn_the_next_is_interactives_though_bulk_has_aged() -> None:
    assert order(holding(*[BULK] * 4, *[INTERACTIVE] * 3), turn_s=1.0) == "IBIBIBB"


def test_a_long_turn_of_control_does_not_let_bulk_go_twice_in_a_row() -> None:
    queue = holding(BULK, BULK)
    queue.take(0.0)
    queue.ended(BULK, 0.1)
    for work_class in (CONTROL, INTERACTIVE):
        queue.put(turn(work_class), 0.1)
    assert order(queue, turn_s=1.0, start=0.1) == "CIB"


def test_bulk_that_was_passed_over_for_250_ms_takes_one_turn() -> None:
    queue = holding(BULK, BULK, *[INTERACTIVE] * 3)
    assert order(queue, turn_s=0.05, start=AGEING_S) == "BIIIB"


def test_bulk_does_not_age_behind_other_bulk() -> None:
    queue = holding(*[BULK] * 3)
    running = queue.take(0.0)
    assert running is not None
    for _ in range(3):
        queue.put(turn(INTERACTIVE), 1.0)
    queue.ended(BULK, 2.0)
    assert order(queue, start=2.0) == "IIIBB"


def test_interactive_turns_that_passed_nobody_over_do_not_count() -> None:
    queue = holding(*[INTERACTIVE] * 3)
    assert order(queue) == "III"
    for work_class in (BULK, *[INTERACTIVE] * 3):
        queue.put(turn(work_class), 0.01)
    assert order(queue, start=0.01) == "IIIB"


def test_requests_and_jobs_alternate_within_the_share_of_bulk() -> None:
    assert order(holding(*[BULK] * 3, *[JOB] * 3)) in ("JBJBJB", "BJBJBJ")
    assert order(holding(*[JOB] * 2, BULK, *[INTERACTIVE] * 9)).replace("I", "") in ("JBJ", "BJJ")


def test_a_request_keeps_its_place_until_its_last_group_and_a_job_does_not() -> None:
    for work_class, first in ((BULK, "continuing"), (JOB, "other")):
        queue = FairQueue()
        other, continuing = turn(work_class), turn(work_class, continues=True)
        queue.put(other, 0.0)
        queue.put(continuing, 0.1)
        assert queue.take(0.2) is {"continuing": continuing, "other": other}[first]


@pytest.mark.parametrize(("turn_s", "expected"), [(0.001, "CIIIIIIIIIIBIB"), (0.1, "CIIIIIIIIIBIIB")])
def test_bulk_that_comes_later_does_not_pass_who_was_admitted_without_it(turn_s: float, expected: str) -> None:
    queue = holding(*[INTERACTIVE] * 2)
    for _ in range(5):
        queue.put(turn(INTERACTIVE, keeps_back=BULK_KINDS), 0.0)
    for work_class in (*[BULK] * 2, *[INTERACTIVE] * 4, CONTROL):
        queue.put(turn(work_class), 0.0)
    # However long that takes, bulk is not passed over by it: three others, or its age, begin when the last of it goes.
    assert order(queue, turn_s=turn_s) == expected


def test_the_age_of_bulk_begins_when_it_may_go() -> None:
    queue = FairQueue()
    queue.put(gone := turn(INTERACTIVE, keeps_back=BULK_KINDS), 0.0)
    queue.put(turn(INTERACTIVE, keeps_back=BULK_KINDS), 0.0)
    queue.put(turn(BULK), 0.0)
    queue.put(turn(INTERACTIVE), 0.0)
    assert queue.passed_over_s(7.0) == 0.0
    assert queue.remove(gone, 7.0)
    queue.take(7.0)
    assert (queue.passed_over, queue.passed_over_s(7.0), queue.passed_over_s(7.2)) == (0, 0.0, pytest.approx(0.2))


def test_bulk_that_was_kept_back_by_who_waits_no_more_has_no_age_from_that_time() -> None:
    queue = FairQueue()
    queue.put(gone := turn(INTERACTIVE, keeps_back=BULK_KINDS), 0.0)
    for work_class in (BULK, INTERACTIVE):
        queue.put(turn(work_class), 0.0)
    assert queue.remove(gone, 7.0)
    assert queue.passed_over_s(7.1) == pytest.approx(0.1)


def test_jobs_that_come_later_do_not_pass_who_was_admitted_without_them() -> None:
    queue = FairQueue()
    queue.put(turn(BULK, keeps_back=(JOB,)), 0.0)
    for work_class in (JOB, JOB, BULK, BULK, *[INTERACTIVE] * 9):
        queue.put(turn(work_class), 0.0)
    # Three queries to one bulk turn all the same; who came after the jobs takes turns with them.
    assert order(queue) == "IIIBIIIJIIIBJB"
    queue = FairQueue()
    queue.put(turn(INTERACTIVE, keeps_back=(JOB,)), 0.0)
    for work_class in (JOB, BULK, BULK, *[INTERACTIVE] * 4):
        queue.put(turn(work_class), 0.0)
    assert order(queue) in ("IIIBIIJB", "IIIJIIBB")


def test_a_request_keeps_jobs_back_until_its_last_group() -> None:
    queue = FairQueue()
    queue.put(turn(BULK, keeps_back=(JOB,)), 0.0)
    queue.put(turn(JOB), 0.0)
    assert queue.take(0.0) is not None
    queue.put(second := turn(BULK, continues=True, keeps_back=(JOB,)), 0.1)
    queue.ended(BULK, 0.1)
    assert queue.take(0.1) is second
    queue.ended(BULK, 0.2)
    assert order(queue, start=0.2) == "J"


def test_what_is_removed_does_not_wait() -> None:
    queue = FairQueue()
    gone, stays = turn(BULK), turn(BULK)
    queue.put(gone, 0.0)
    queue.put(stays, 0.0)
    assert queue.remove(gone, 0.0)
    assert not queue.remove(gone, 0.0)
    assert queue.take(0.0) is stays
    assert len(queue) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([INTERACTIVE, BULK, JOB]), st.floats(0.0, 0.4), st.floats(0.0, 0.2)),
        min_size=1,
        max_size=60,
    )
)
def test_nobody_is_passed_over_for_longer_than_the_rule_lets_him(
    events: list[tuple[WorkClass, float, float]],
) -> None:
    """Whatever comes: never two bulk turns while interactive waits, nor more than three interactive over bulk."""
    queue, now = FairQueue(), 0.0
    passed, last_bulk_with_interactive_waiting = 0, False
    for work_class, takes, pause in events:
        queue.put(turn(work_class), now)
        now += pause
        interactive, bulk = queue.depth(INTERACTIVE), queue.bulk_waits
        due = queue.passed_over_s(now) >= AGEING_S
        taken = queue.take(now)
        assert taken is not None
        if taken.work_class is INTERACTIVE:
            passed = passed + 1 if bulk else 0
            assert passed <= INTERACTIVE_IN_A_ROW
            assert not due or last_bulk_with_interactive_waiting
            last_bulk_with_interactive_waiting = False
        else:
            assert not (interactive and last_bulk_with_interactive_waiting)
            passed, last_bulk_with_interactive_waiting = 0, True
        # A second one of the same class keeps the queue from running dry.
        queue.put(turn(work_class), now)
        now += takes
        queue.ended(taken.work_class, now)


@pytest.mark.parametrize("takes", [0.001, 0.05, 0.3, 2.0])
def test_bulk_has_a_fifth_of_the_turns_at_least_however_much_interactive_there_is(takes: float) -> None:
    queue, now, turns = FairQueue(), 0.0, []
    queue.put(turn(BULK), now)
    for _ in range(400):
        queue.put(turn(INTERACTIVE), now)
        queue.put(turn(INTERACTIVE), now)
        taken = queue.take(now)
        assert taken is not None
        turns.append(taken.work_class)
        now += takes
        queue.ended(taken.work_class, now)
        # The worst for bulk: its next group asks only when the one before is over, and misses that turn.
        if taken.work_class is BULK:
            queue.put(turn(INTERACTIVE), now)
            second = queue.take(now)
            assert second is not None
            turns.append(second.work_class)
            queue.put(turn(BULK), now)
            now += takes
            queue.ended(second.work_class, now)
    assert turns.count(BULK) / len(turns) >= 0.199
