from __future__ import annotations

from collections.abc import Callable

from synapse_host.lanes.device_turns import Devices, DeviceTurns


def numbered(began: list[int], number: int) -> Callable[[], None]:
    return lambda: began.append(number)


def test_turns_come_one_at_a_time_in_the_order_asked() -> None:
    turns, began = DeviceTurns(), []
    for number in range(3):
        turns.ask(numbered(began, number))
    assert (began, turns.running, turns.waiting, turns.free) == ([0], 1, 2, False)
    turns.end()
    assert began == [0, 1]
    turns.end()
    turns.end()
    assert (began, turns.running, turns.free) == ([0, 1, 2], 0, True)


def test_as_many_run_at_once_as_the_device_takes() -> None:
    turns, began = DeviceTurns(2), []
    for number in range(3):
        turns.ask(numbered(began, number))
    assert began == [0, 1]


def test_what_is_withdrawn_has_no_turn() -> None:
    turns, began = DeviceTurns(), []
    first, second, third = (numbered(began, number) for number in range(3))
    for begin in (first, second, third):
        turns.ask(begin)
    assert turns.withdraw(second)
    assert not turns.withdraw(first)
    turns.end()
    assert began == [0, 2]


def test_any_number_of_turns_may_end_at_once() -> None:
    turns, began = DeviceTurns(), []

    def end_at_once() -> None:
        began.append(len(began))
        turns.end()

    turns.ask(lambda: None)
    for _ in range(10_000):
        turns.ask(end_at_once)
    turns.end()
    assert len(began) == 10_000
    assert turns.free


def test_every_device_class_has_turns_of_its_own() -> None:
    devices = Devices()
    assert devices.of("cpu") is devices.of("cpu")
    devices.of("cpu").ask(lambda: None)
    assert not devices.of("cpu").free
    assert devices.of("cuda").free
