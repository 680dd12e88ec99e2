"""Permits of one device: how many at once, whose turn is next, and what is known of those who wait."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from synapse_host.admission.admission import Refused, decide_time
from synapse_host.admission.device_turns import Devices, DeviceTurns
from synapse_host.admission.prediction import Work, predict
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import BULK_KINDS, WorkClass


def numbered(began: list[int], number: int) -> Turn:
    return Turn(lambda: began.append(number))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def nothing() -> None:
    return None


def asked(turns: DeviceTurns, *given: Turn) -> Callable[[], None]:
    for turn in given:
        turns.ask(turn)
    return nothing


def test_turns_come_one_at_a_time_in_the_order_asked() -> None:
    turns, began = DeviceTurns(), []
    three = [numbered(began, number) for number in range(3)]
    asked(turns, *three)
    assert (began, turns.running, turns.waiting, turns.free) == ([0], 1, 2, False)
    turns.end(three[0])
    assert began == [0, 1]
    turns.end(three[1])
    turns.end(three[2])
    assert (began, turns.running, turns.free) == ([0, 1, 2], 0, True)


def test_as_many_run_at_once_as_the_device_takes() -> None:
    turns, began = DeviceTurns(2), []
    asked(turns, *(numbered(began, number) for number in range(3)))
    assert began == [0, 1]


def test_what_is_withdrawn_has_no_turn() -> None:
    turns, began = DeviceTurns(), []
    first, second, third = (numbered(began, number) for number in range(3))
    asked(turns, first, second, third)
    assert turns.withdraw(second)
    assert not turns.withdraw(first)
    turns.end(first)
    assert began == [0, 2]


def test_any_number_of_turns_may_end_at_once() -> None:
    turns, began = DeviceTurns(), []
    first = Turn(nothing)

    def ending_at_once() -> Turn:
        turn = Turn(lambda: (began.append(1), turns.end(turn))[0])
        return turn

    turns.ask(first)
    for _ in range(10_000):
        turns.ask(ending_at_once())
    turns.end(first)
    assert len(began) == 10_000
    assert turns.free


def test_what_is_asked_for_at_the_end_of_a_turn_waits_behind_those_that_asked_before() -> None:
    turns, began = DeviceTurns(), []
    first, second, third = (numbered(began, number) for number in (1, 2, 3))
    asked(turns, first, second, third)
    turns.end(first)
    assert began == [1, 2]


def test_every_device_class_has_turns_of_its_own() -> None:
    devices = Devices()
    assert devices.of("cpu") is devices.of("cpu")
    devices.of("cpu").ask(Turn(nothing))
    assert not devices.of("cpu").free
    assert devices.of("cuda").free
    assert (devices.running, devices.waiting) == (1, 0)


def test_an_interactive_turn_goes_before_bulk_that_asked_first() -> None:
    turns, began = DeviceTurns(), []
    running = Turn(nothing, WorkClass.BULK)
    bulk = Turn(lambda: began.append(1), WorkClass.BULK)
    query = Turn(lambda: began.append(2), WorkClass.INTERACTIVE)
    asked(turns, running, bulk, query)
    assert turns.depth(WorkClass.BULK) == turns.depth(WorkClass.INTERACTIVE) == 1
    turns.end(running)
    assert began == [2]


def test_what_waits_is_known_with_what_the_same_requests_have_not_asked_for_yet() -> None:
    clock = Clock()
    turns = DeviceTurns(clock=clock)
    running = Turn(nothing, WorkClass.BULK, 100.0)
    first = Turn(nothing, WorkClass.BULK, 50.0, rest_groups=2, rest_ms=70.0)
    asked(turns, running, first)
    load = turns.load()
    assert (load.groups[WorkClass.BULK], load.waiting_ms[WorkClass.BULK]) == (3, 120.0)
    clock.now = 0.04
    assert turns.load().running_ms == ((100.0, pytest.approx(40.0)),)
    turns.end(running)
    load = turns.load()
    assert (load.groups[WorkClass.BULK], load.waiting_ms[WorkClass.BULK]) == (2, 70.0)
    last = Turn(nothing, WorkClass.BULK, 30.0, rest_groups=1, rest_ms=40.0, continues=True)
    turns.ask(last)
    turns.end(first)
    assert (turns.load().groups[WorkClass.BULK], turns.load().waiting_ms[WorkClass.BULK]) == (1, 40.0)
    turns.ask(gone := Turn(nothing, WorkClass.BULK, 30.0, rest_groups=1, rest_ms=40.0))
    turns.withdraw(gone)
    turns.end(last)
    assert (turns.load().groups[WorkClass.BULK], turns.load().waiting_ms[WorkClass.BULK]) == (0, 0.0)


def test_bulk_is_reckoned_with_while_it_is_there_and_for_a_moment_after() -> None:
    clock = Clock()
    turns = DeviceTurns(clock=clock)
    assert turns.load().bulk_ms == 0.0
    running, waits = Turn(nothing, WorkClass.JOB, 100.0), Turn(nothing, WorkClass.BULK, 70.0)
    asked(turns, running, waits)
    # Hours may pass before it has its turn, or while it has it.
    clock.now = 60.0
    assert turns.load().bulk_ms == 100.0
    turns.end(running)
    clock.now = 120.0
    assert turns.load().bulk_ms == 70.0
    turns.end(waits)
    clock.now += 0.2
    assert turns.load().bulk_ms == 70.0, "who computes batch after batch asks again at once"
    clock.now += 0.1
    assert turns.load().bulk_ms == 0.0
    # A request that has more to ask for is there.
    turns.ask(first := Turn(nothing, WorkClass.BULK, 30.0, rest_groups=1, rest_ms=30.0))
    clock.now += 60.0
    assert turns.load().bulk_ms == 70.0
    turns.end(first)
    clock.now += 0.3
    assert turns.load().bulk_ms == 0.0


def test_any_number_of_queries_is_taken_up_by_a_device_that_a_job_has_left() -> None:
    clock = Clock()
    turns = DeviceTurns(clock=clock)
    turns.ask(job := Turn(nothing, WorkClass.JOB, 500.0))
    clock.now = 0.5
    turns.end(job)
    clock.now = 0.8
    for number in range(200):
        found = decide_time(Work(WorkClass.INTERACTIVE, [5.0]), turns.load(), max_queue_ms=1000, remaining_ms=1600)
        assert not isinstance(found, Refused), (number, found)
        turns.ask(Turn(nothing, WorkClass.INTERACTIVE, 5.0))


def test_a_batch_after_a_job_is_judged_without_it_and_not_passed_by_the_next_one() -> None:
    clock = Clock()
    turns, began = DeviceTurns(clock=clock), []
    turns.ask(job := Turn(nothing, WorkClass.JOB, 500.0))
    assert turns.load().job_ms == 500.0
    clock.now = 0.5
    turns.end(job)
    clock.now += 0.2
    assert turns.load().job_ms == 500.0, "its next group asks at once"
    clock.now += 0.1
    batch = Work(WorkClass.BULK, [50.0] * 3)
    assert predict(batch, turns.load()).finish_ms == 150.0
    asked(turns, first := Turn(nothing, WorkClass.BULK, 50.0, rest_groups=1, rest_ms=50.0))
    assert predict(batch, turns.load()).finish_ms == 1.5 * 100 + 150
    turns.ask(Turn(lambda: began.append("job"), WorkClass.JOB, 500.0))
    assert turns.load().job_ms == 500.0, "it waits"
    rest = Turn(lambda: began.append("rest"), WorkClass.BULK, 50.0, continues=True, keeps_back=first.keeps_back)
    turns.ask(rest)
    asked(turns, Turn(lambda: began.append("later"), WorkClass.BULK, 50.0))
    turns.end(first)
    turns.end(rest)
    turns.end(next(iter(turns._running)))
    assert began == ["rest", "job", "later"]


def test_a_query_beside_batches_is_not_judged_by_a_job_that_has_ended() -> None:
    clock = Clock()
    turns = DeviceTurns(clock=clock)
    turns.ask(job := Turn(nothing, WorkClass.JOB, 500.0))
    turns.end(job)
    clock.now = 0.3
    asked(turns, batch := Turn(nothing, WorkClass.BULK, 50.0), Turn(nothing, WorkClass.BULK, 50.0))
    assert turns.load().bulk_ms == 50.0
    asked(turns, Turn(nothing, WorkClass.INTERACTIVE, 5.0), query := Turn(nothing, WorkClass.INTERACTIVE, 5.0))
    assert query.keeps_back == (WorkClass.JOB,)
    turns.ask(Turn(nothing, WorkClass.JOB, 500.0))
    began = []
    while turns.running:
        turn = next(iter(turns._running))
        began.append(turn.work_class)
        turns.end(turn)
    assert [kind.value[0] for kind in began] == ["b", "i", "i", "b", "j"]
    assert batch.keeps_back == (WorkClass.JOB,)


def test_a_batch_is_told_of_the_jobs_that_go_among_the_queries_that_keep_it_back() -> None:
    clock = Clock()
    turns, began = DeviceTurns(clock=clock), []
    asked(turns, Turn(nothing, WorkClass.JOB, 100.0), Turn(lambda: began.append("job"), WorkClass.JOB, 100.0))
    asked(turns, *(Turn(lambda: began.append("query"), WorkClass.INTERACTIVE, 10.0) for _ in range(5)))
    load = turns.load()
    assert load.held_back, "there is no batch, so they keep those that come back"
    # The rest of the job's turn, five queries and another turn among them, and one more before the batch.
    assert predict(Work(WorkClass.BULK, [1.0]), load).start_ms >= 100 + 50 + 100 + 100
    turns.ask(Turn(lambda: began.append("batch"), WorkClass.BULK, 1.0))
    while len(began) < 7:
        turns.end(next(iter(turns._running)))
    assert began == ["query"] * 3 + ["job"] + ["query"] * 2 + ["batch"]


def test_bulk_is_told_of_all_who_were_admitted_without_it() -> None:
    clock = Clock()
    turns, began = DeviceTurns(clock=clock), []
    asked(turns, *(Turn(lambda: began.append("query"), WorkClass.INTERACTIVE, 10.0) for _ in range(50)))
    load = turns.load()
    assert load.held_back
    assert predict(Work(WorkClass.BULK, [1.0]), load).start_ms >= 500.0
    turns.ask(Turn(lambda: began.append("bulk"), WorkClass.BULK, 1.0))
    # Who comes now was told of bulk, and does not keep it back.
    late = [Turn(lambda: began.append("late"), WorkClass.INTERACTIVE, 10.0) for _ in range(20)]
    asked(turns, *late)
    while len(began) < 71:
        clock.now += 0.01
        turns.end(next(iter(turns._running)))
    assert began == ["query"] * 50 + ["late"] * 3 + ["bulk"] + ["late"] * 17
    assert not turns.load().held_back


def test_the_next_group_of_a_request_admitted_without_bulk_is_not_passed_by_it_either() -> None:
    turns, began = DeviceTurns(clock=Clock()), []
    first = Turn(lambda: began.append(1), WorkClass.INTERACTIVE, 10.0, rest_groups=1, rest_ms=10.0)
    asked(turns, first, Turn(lambda: began.append(3), WorkClass.BULK, 10.0))
    assert first.keeps_back == BULK_KINDS
    assert turns.load().held_back
    turns.ask(Turn(lambda: began.append(2), WorkClass.INTERACTIVE, 10.0, continues=True, keeps_back=first.keeps_back))
    turns.end(first)
    assert began == [1, 2]
    assert not turns.load().held_back


def test_nothing_is_left_of_fractions_when_nobody_waits() -> None:
    turns = DeviceTurns()
    turns.ask(running := Turn(nothing, WorkClass.BULK))
    waiting = [Turn(nothing, WorkClass.INTERACTIVE, estimate) for estimate in (0.1, 0.2, 0.3)]
    asked(turns, *waiting)
    for turn in waiting:
        turns.withdraw(turn)
    assert turns.load().waiting_ms[WorkClass.INTERACTIVE] == 0.0
    turns.end(running)


def test_waits_are_kept_for_their_percentiles() -> None:
    clock = Clock()
    turns = DeviceTurns(clock=clock)
    first, second = Turn(nothing), Turn(nothing)
    asked(turns, first, second)
    clock.now = 0.03
    turns.end(first)
    assert turns.waits.percentile(0.5) == 0.0
    assert turns.waits.percentile(0.95) == pytest.approx(30.0)


@pytest.mark.anyio
async def test_a_task_holds_a_permit_for_a_block_and_gives_it_back_whatever_happens() -> None:
    turns = DeviceTurns()
    async with turns.held(WorkClass.CONTROL):
        assert turns.running == 1
        with anyio.move_on_after(0):
            async with turns.held(WorkClass.CONTROL):
                raise AssertionError("two hold the one permit")
        assert turns.waiting == 0
    with pytest.raises(KeyError):
        async with turns.held(WorkClass.CONTROL):
            raise KeyError
    assert turns.free


@pytest.mark.anyio
async def test_while_a_device_is_closed_nothing_begins_and_what_ran_ends_first() -> None:
    turns, began, closed = DeviceTurns(), [], []
    first, second = numbered(began, 1), numbered(began, 2)
    turns.ask(first)

    async def close() -> None:
        async with turns.closed():
            closed.append(list(began))
            assert (turns.running, turns.free) == (0, False)
            turns.ask(second)
            assert began == [1]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(close)
        await anyio.wait_all_tasks_blocked()
        assert closed == []
        turns.end(first)
    assert closed == [[1]]
    assert began == [1, 2]
