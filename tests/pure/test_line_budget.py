from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synapse_host.supervision.line_budget import LineBudget


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_of_one_second_is_let_through_and_the_rest_counted() -> None:
    budget = LineBudget(3, Clock())
    assert [budget.take() for _ in range(5)] == [True, True, True, False, False]
    assert (budget.refused(), budget.refused()) == (2, 0)


def test_time_fills_it_again_up_to_one_second() -> None:
    clock = Clock()
    budget = LineBudget(4, clock)
    assert all(budget.take() for _ in range(4))
    clock.now += 0.25
    assert (budget.take(), budget.take()) == (True, False)
    clock.now += 1000
    assert [budget.take() for _ in range(5)] == [True] * 4 + [False]


def test_none_is_none() -> None:
    clock = Clock()
    budget = LineBudget(0, clock)
    clock.now += 1000
    assert not budget.take()
    assert budget.refused() == 1


@given(st.integers(1, 100), st.lists(st.floats(-1, 3), max_size=300))
def test_never_more_than_a_burst_and_the_rate_and_every_line_is_counted(rate: int, steps: list[float]) -> None:
    clock = Clock()
    budget = LineBudget(rate, clock)
    taken = refused = 0
    forward = 0.0
    for step in steps:
        clock.now += step
        forward += max(0.0, step)
        taken += budget.take()
        refused += budget.refused()
    assert taken + refused == len(steps)
    assert taken <= rate + forward * rate + 1e-6
