"""Strikes and quarantine under both policies, against the rule written down as a model of a few lines."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from synapse_host.errors import EngineCrashed, ProbeRequired
from synapse_host.lanes.strikes import CATALOG, FREE_FORM, QUARANTINE_AT, QuarantinePolicy, Strikes
from synapse_host.lanes.worker_errors import is_strike_fault


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class AnyOrder(RuleBasedStateMachine):
    """Faults, served work, releases and time in every order."""

    @initialize(policy=st.sampled_from([CATALOG, FREE_FORM]))
    def begin(self, policy: QuarantinePolicy) -> None:
        self.clock, self.policy = Clock(), policy
        self.strikes = Strikes(policy, self.clock)
        #: The model: faults in a row, and when the second of them fell.
        self.row, self.fell = 0, 0.0

    def _cool(self) -> None:
        if self.policy is CATALOG and self.row >= 2 and self.clock.now >= self.fell + 600:
            self.row = 0

    @rule()
    def fault(self) -> None:
        self._cool()
        if self.row < 2:
            self.fell = self.clock.now
        self.row = min(self.row + 1, 2)
        self.strikes.fault()

    @rule()
    def served(self) -> None:
        self._cool()
        self.row = self.row if self.row >= 2 else 0
        self.strikes.served()

    @rule()
    def release(self) -> None:
        self._cool()
        self.row = 0 if self.row >= 2 else self.row
        self.strikes.release()

    @rule(seconds=st.one_of(st.floats(0, 700), st.sampled_from([599.999, 600.0, 300.0])))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        self._cool()

    @invariant()
    def agrees(self) -> None:
        assert min(self.strikes.count, 2) == self.row
        assert self.strikes.quarantined == (self.row >= 2)
        refusal = self.strikes.refusal("lane")
        assert (refusal is None) == (self.row < 2)
        if refusal is None:
            assert self.strikes.cool_down_ms is None
            return
        assert refusal.details == {"lane_id": "lane", "quarantined": True}
        if self.policy is FREE_FORM:
            assert isinstance(refusal, ProbeRequired)
            assert (refusal.error_class, refusal.retry_after_ms) == ("permanent", None)
        else:
            left_ms = (self.fell + 600 - self.clock.now) * 1000
            assert isinstance(refusal, EngineCrashed)
            assert refusal.error_class == "transient"
            assert refusal.retry_after_ms is not None
            assert max(1, left_ms) <= refusal.retry_after_ms <= left_ms + 1.001


TestAnyOrder = AnyOrder.TestCase


def quarantined(policy: QuarantinePolicy) -> tuple[Strikes, Clock]:
    clock = Clock()
    strikes = Strikes(policy, clock)
    strikes.fault()
    assert not strikes.quarantined
    strikes.fault()
    assert (strikes.quarantined, strikes.count) == (True, QUARANTINE_AT)
    return strikes, clock


def test_a_cool_down_is_ten_minutes_to_the_millisecond_and_leaves_no_strike() -> None:
    strikes, clock = quarantined(CATALOG)
    assert strikes.cool_down_ms == 600_000
    clock.now += 599.9995
    assert strikes.cool_down_ms == 1
    clock.now += 0.0005
    assert (strikes.count, strikes.refusal("m")) == (0, None)
    strikes.fault()
    assert not strikes.quarantined


def test_a_fault_during_the_cool_down_makes_it_no_longer() -> None:
    strikes, clock = quarantined(CATALOG)
    clock.now += 500
    strikes.fault()
    assert strikes.cool_down_ms == 100_000


def test_a_free_form_lane_waits_for_ever_and_says_what_to_do() -> None:
    strikes, clock = quarantined(FREE_FORM)
    clock.now += 10**9
    strikes.served()
    refusal = strikes.refusal("m")
    assert refusal is not None
    assert "unload and load it again" in refusal.message
    strikes.release()
    assert strikes.refusal("m") is None


@pytest.mark.parametrize("policy", [CATALOG, FREE_FORM])
def test_releasing_takes_no_single_strike_back(policy: QuarantinePolicy) -> None:
    strikes = Strikes(policy, Clock())
    strikes.fault()
    strikes.release()
    strikes.fault()
    assert strikes.quarantined


@pytest.mark.parametrize(
    ("reason", "code", "counts"),
    [
        ("exited", None, True),
        ("protocol_fault", None, True),
        ("silence", None, True),
        ("handshake_refused", "nonce_mismatch", True),
        ("handshake_refused", "version_mismatch", True),
        ("handshake_refused", "malformed_hello", True),
        ("handshake_refused", "manifest_mismatch", False),
        ("handshake_refused", "kernel_revision_mismatch", False),
        ("handshake_timeout", None, False),
        ("spawn_failed", None, False),
        ("stopped", None, False),
        ("host_fault", None, False),
        ("zero_output", None, False),
        (None, None, False),
    ],
)
def test_what_counts(reason: str | None, code: str | None, counts: bool) -> None:
    assert is_strike_fault(reason, code) is counts
