"""The pause of a kind of hardware as a machine: what is never true, whatever happens in whatever order."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from synapse_host.lanes.pause_state import DrainFault, Pause, PausePhase, PauseState
from synapse_host.models.registered_model import RegisteredModel

LANE = DrainFault("gte-ane", "unload", "engine_crashed", "it does not end")
LOCK = DrainFault(None, "release_lock", "store_failure", "no such descriptor")
PAUSE = Pause("measuring", until_ms=1_700_000_060_000, ends_at=60.0)


def model() -> RegisteredModel:
    empty: dict[str, Any] = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    return RegisteredModel(**{**empty, "model_id": "gte-ane", "fingerprint": "f" * 64})


def paused(*events: str) -> PauseState:
    state = PauseState()
    state.begin(PAUSE)
    for event in events:
        {
            "given back": state.lock_given_back,
            "lane": lambda: state.lane_failed(LANE),
            "lock": lambda: state.lock_stuck(LOCK),
            "end": state.end,
            "taken": state.lock_taken,
        }[event]()
    return state


@pytest.mark.parametrize(
    ("events", "phase"),
    [
        ([], "draining"),
        (["given back"], "paused"),
        (["given back", "end"], "waiting_for_lock"),
        (["given back", "end", "taken"], "running"),
        (["end"], "running"),
        (["lane"], "drain_failed"),
        (["lane", "given back"], "drain_failed"),
        (["lane", "end"], "running"),
        (["lock"], "drain_failed"),
        (["lock", "given back"], "paused"),
        (["lock", "lane", "given back"], "drain_failed"),
        (["lock", "end"], "running"),
        (["given back", "end", "end"], "waiting_for_lock"),
        (["given back", "end", "lane"], "waiting_for_lock"),
        (["taken"], "draining"),
    ],
)
def test_phases(events: list[str], phase: str) -> None:
    state = paused(*events)
    assert state.phase == phase
    assert state.hardware_free == (phase == "paused")


def test_what_is_told_while_nothing_is_paused() -> None:
    running = {"phase": "running", "hardware_free": False, "lane_ids": []}
    assert PauseState().to_wire(["gte-ane"]) == running
    assert paused("given back", "end", "taken").to_wire(["gte-ane"]) == running


def test_what_is_told_of_a_pause() -> None:
    told = {
        "paused_until_ms": PAUSE.until_ms,
        "reason": "measuring",
        "lane_ids": ["gte-ane"],
        "phase": "draining",
        "hardware_free": False,
    }
    assert paused().to_wire(["gte-ane"]) == told
    assert paused("given back").to_wire(["gte-ane"]) == told | {"phase": "paused", "hardware_free": True}
    assert paused("lane").to_wire(["gte-ane"]) == told | {
        "phase": "drain_failed",
        "drain_error": {
            "lane_id": "gte-ane",
            "stage": "unload",
            "code": "engine_crashed",
            "message": "it does not end",
        },
    }
    assert paused("lock").to_wire([])["drain_error"]["lane_id"] is None


@pytest.mark.parametrize(("now", "retry"), [(0.0, 60_000), (58.5, 1500), (59.5, 1000), (70.0, 1000)])
def test_a_refusal_names_the_lane_and_what_is_left(now: float, retry: int) -> None:
    refusal = paused().refusal(model(), now).to_wire()
    assert refusal["code"] == "lane_paused"
    assert (refusal["class"], refusal["safe_to_retry_same_request"]) == ("transient", True)
    assert refusal["retry_after_ms"] == retry
    assert refusal["details"] == {
        "lane_id": "gte-ane",
        "fingerprint": "f" * 64,
        "paused_until_ms": PAUSE.until_ms,
        "reason": "measuring",
    }


def test_who_waits_for_the_lock_is_told_to_ask_again_in_a_second() -> None:
    assert paused("given back", "end").refusal(model(), 1.0).to_wire()["retry_after_ms"] == 1000


class AnyOrder(RuleBasedStateMachine):
    """Every event at any time, beside the few facts that decide."""

    def __init__(self) -> None:
        super().__init__()
        self.state = PauseState()
        self.ours = True
        self.failed = False
        self.over = True

    @rule(reason=st.text(min_size=1))
    def begin(self, reason: str) -> None:
        was = self.state.active
        assert self.state.begin(Pause(reason, 1, 1.0)) is not was
        if not was:
            self.failed, self.over = False, False
        else:
            assert self.state.pause is not None

    @rule()
    def lane_fails(self) -> None:
        self.failed = self.failed or self.state.phase in ("draining", "drain_failed")
        self.state.lane_failed(LANE)

    @rule()
    def lock_sticks(self) -> None:
        self.state.lock_stuck(LOCK)

    @rule()
    def lock_goes(self) -> None:
        if self.state.may_give_lock_back:
            self.ours = False
        self.state.lock_given_back()

    @rule()
    def end(self) -> None:
        self.over = True
        self.state.end()

    @rule()
    def lock_comes(self) -> None:
        if self.state.phase is PausePhase.WAITING_FOR_LOCK:
            self.ours = True
        self.state.lock_taken()

    @invariant()
    def nobody_computes_without_the_lock(self) -> None:
        assert self.ours or self.state.active

    @invariant()
    def free_hardware_is_empty_and_not_ours(self) -> None:
        assert self.state.hardware_free == (self.state.phase == "paused")
        if self.state.hardware_free:
            assert not self.ours
            assert not self.failed
            assert not self.over

    @invariant()
    def after_its_end_a_pause_waits_for_nothing_but_the_lock(self) -> None:
        if self.over:
            assert self.state.phase in ("running", "waiting_for_lock")
        assert self.state.ends_later == (not self.over and self.state.active)

    @invariant()
    def a_fault_is_told_exactly_while_draining_failed(self) -> None:
        assert ("drain_error" in self.state.to_wire([])) == (self.state.phase == "drain_failed")
        assert (self.state.pause is None) == (self.state.phase == "running")


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=30)
