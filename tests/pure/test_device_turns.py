"""Permits of one device: how many at once, whose turn is next, and what is known of those who wait."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from synapse_host.admission.device_turns import Devices, DeviceTurns
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass


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
