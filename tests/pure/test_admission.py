from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.admission.admission import Admitted, Load, Refused, Request, decide, request_bytes
from synapse_host.admission.gate import Budget, Gate
from synapse_host.errors import DeadlineExceeded, InvalidRequest, QueueFull

IDLE = Load(bytes_in_flight=0, byte_budget=1000, waiting=0, permit_free=True, estimate_ms=25)


def load_with(**changes: float) -> Load:
    return Load(**{**{name: getattr(IDLE, name) for name in Load.__slots__}, **changes})  # type: ignore[arg-type]


def test_idle_lane_starts_at_once_and_finishes_after_the_estimate() -> None:
    assert decide(Request(10, 0, 1000), IDLE) == Admitted(start_ms=0, finish_ms=25)


@pytest.mark.parametrize(
    ("request_", "load", "reason"),
    [
        (Request(1001, 5000, 30_000), IDLE, "never_fits"),
        (Request(600, 5000, 30_000), load_with(bytes_in_flight=401), "bytes"),
        (Request(1, 24, 30_000), load_with(permit_free=False), "queue"),
        (Request(1, 5000, 24), IDLE, "deadline"),
        (Request(1, 5000, 49), load_with(permit_free=False), "deadline"),
    ],
)
def test_refusal_says_which_limit_was_passed(request_: Request, load: Load, reason: str) -> None:
    decision = decide(request_, load)
    assert isinstance(decision, Refused)
    assert decision.reason == reason
    assert decision.predicted > decision.limit


def test_bytes_are_checked_before_times() -> None:
    decision = decide(Request(2000, 0, 0), load_with(permit_free=False, waiting=9))
    assert isinstance(decision, Refused)
    assert decision.reason == "never_fits"


@given(
    size=st.integers(0, 2000),
    queue=st.floats(0, 10_000),
    remaining=st.floats(-100, 60_000),
    held=st.integers(0, 1000),
    waiting=st.integers(0, 500),
    free=st.booleans(),
)
def test_an_admitted_request_keeps_every_limit(
    size: int, queue: float, remaining: float, held: int, waiting: int, free: bool
) -> None:
    decision = decide(Request(size, queue, remaining), Load(held, 1000, waiting, free, 25))
    if isinstance(decision, Admitted):
        assert held + size <= 1000
        assert decision.start_ms <= queue
        assert decision.finish_ms <= remaining


def test_a_longer_text_costs_its_characters_and_each_item_its_overhead() -> None:
    assert request_bytes(["", "abc"]) == 128 + 131


def budget(deadline_ms: int = 1000, max_queue_ms: int = 1000) -> Budget:
    return Budget(deadline_at=deadline_ms / 1000, deadline_ms=deadline_ms, max_queue_ms=max_queue_ms)


def gate() -> Gate:
    return Gate(byte_budget=1000, estimate_ms=25, clock=lambda: 0.0)


def test_gate_returns_its_bytes_when_the_block_ends_or_fails() -> None:
    it = gate()
    with it.admitted(700, budget(), waiting=0, permit_free=True):
        assert it.bytes_in_flight == 700
    with pytest.raises(RuntimeError), it.admitted(700, budget(), waiting=0, permit_free=True):
        raise RuntimeError
    assert it.bytes_in_flight == 0


def test_gate_refuses_with_both_numbers_and_books_nothing() -> None:
    it = gate()
    with pytest.raises(InvalidRequest) as never, it.admitted(1001, budget(), waiting=0, permit_free=True):
        pass
    assert never.value.details == {"bytes": 1001, "byte_budget": 1000}
    with (
        it.admitted(700, budget(), waiting=0, permit_free=True),
        pytest.raises(QueueFull, match="1100 bytes would be in flight and the budget is 1000"),
        it.admitted(400, budget(), waiting=0, permit_free=True),
    ):
        pass
    assert it.bytes_in_flight == 0


def test_a_deadline_of_one_millisecond_is_refused_with_the_number() -> None:
    with (
        pytest.raises(DeadlineExceeded, match="deadline_ms of 1;"),
        gate().admitted(1, budget(deadline_ms=1), waiting=0, permit_free=True),
    ):
        pass


def test_max_queue_ms_refuses_before_the_deadline_does() -> None:
    with (
        pytest.raises(DeadlineExceeded, match="max_queue_ms of 10;"),
        gate().admitted(1, budget(max_queue_ms=10), waiting=0, permit_free=False),
    ):
        pass
