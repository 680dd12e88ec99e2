"""The key, the states and the refusals of the check at load, and what its execution may cost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from synapse_host.certification import self_check
from synapse_host.certification.self_check import NOT_APPLICABLE, SelfCheckKey, SelfCheckRow
from synapse_host.certification.self_check_budget import CEILING_MS, ExecutionBudget
from synapse_host.certification.self_check_judge import Verdict
from synapse_host.identity.numeric_profile import EngineIdentity

KEY = SelfCheckKey(
    catalog_id="gte-modernbert-base",
    manifest_digest="a" * 64,
    backend="metal",
    fingerprint="b" * 64,
    engine=EngineIdentity("owned-metal", "1", {"dtype": "f16"}),
    os_build="24A1",
    fixture_revision=1,
)
PASSED = Verdict(True, None, {"min_cosine": 0.99999})
FAILED = Verdict(False, "case short-0: cosine 0.9000000, below 0.999", {"min_cosine": 0.9})


def test_the_check_id_is_a_frozen_digest_of_the_seven_parts() -> None:
    written = json.dumps(KEY.as_json(), sort_keys=True, separators=(",", ":"))
    assert KEY.check_id == hashlib.sha256(written.encode()).hexdigest()
    assert KEY.check_id == "886b38bdd0400326207a991284d2003b7c58a431884d0af57022869b3e7f55dd"
    assert sorted(KEY.as_json()) == sorted(
        ["catalog_id", "manifest_digest", "backend", "fingerprint", "engine_identity", "os_build", "fixture_revision"]
    )


@pytest.mark.parametrize(
    "change",
    [
        {"catalog_id": "other"},
        {"manifest_digest": "c" * 64},
        {"backend": "cuda"},
        {"fingerprint": "c" * 64},
        {"engine": EngineIdentity("owned-metal", "2", {"dtype": "f16"})},
        {"engine": EngineIdentity("owned-metal", "1", {"dtype": "f32"})},
        {"os_build": "24A2"},
        {"fixture_revision": 2},
        {"subset_seal": "d" * 64},
    ],
)
def test_every_part_of_the_key_makes_a_check_of_its_own(change: dict[str, object]) -> None:
    other = replace(KEY, **change)  # type: ignore[arg-type]
    assert other.check_id != KEY.check_id
    kept = self_check.concluded(KEY, FAILED, 7)
    assert self_check.standing(other, kept) == SelfCheckRow(other)
    assert self_check.standing(KEY, kept) is kept


def test_a_lane_begins_pending_and_keeps_what_was_found() -> None:
    assert self_check.standing(KEY, None) == SelfCheckRow(KEY, "pending")
    assert self_check.concluded(KEY, PASSED, 5) == SelfCheckRow(KEY, "passed", None, {"min_cosine": 0.99999}, 5)
    assert self_check.concluded(KEY, FAILED, 5).state == "failed"


def test_the_row_in_a_listing_says_what_is_known_and_no_more() -> None:
    assert SelfCheckRow(KEY).to_wire() == {"state": "pending", "check_id": KEY.check_id}
    assert self_check.concluded(KEY, FAILED, 5).to_wire() == {
        "state": "failed",
        "check_id": KEY.check_id,
        "checked_at_ms": 5,
        "evidence": {"min_cosine": 0.9},
        "reason": FAILED.reason,
    }
    assert dict(NOT_APPLICABLE) == {"state": "not_applicable"}


def test_a_failed_check_refuses_for_good_with_its_details() -> None:
    refusal = self_check.failure(self_check.concluded(KEY, FAILED, 5), "gte-modernbert-base").to_wire()
    assert (refusal["code"], refusal["class"]) == ("self_check_failed", "permanent")
    assert refusal["safe_to_retry_same_request"] is False
    assert "retry_after_ms" not in refusal
    assert refusal["details"] == {
        "model_id": "gte-modernbert-base",
        "backend": "metal",
        "check_id": KEY.check_id,
        "reason": FAILED.reason,
    }
    assert "cosine 0.9" in refusal["message"]


def test_a_run_past_its_ceiling_is_transient() -> None:
    refusal = self_check.overtime("gte-modernbert-base", 2345.6, CEILING_MS).to_wire()
    assert (refusal["code"], refusal["class"], refusal["retry_after_ms"]) == ("engine_crashed", "transient", 250)
    assert refusal["safe_to_retry_same_request"] is True
    assert refusal["details"]["reason"] == "self_check_ceiling"


def test_only_time_under_the_permit_is_spent() -> None:
    now = [0.0]
    budget = ExecutionBudget(lambda: now[0])
    now[0] += 60_000  # waited for the permit
    with budget.held():
        now[0] += 1_999
    now[0] += 60_000  # waited for it again
    assert (budget.spent_ms, budget.expired) == (1_999, False)
    with budget.held():
        now[0] += 1
    assert (budget.spent_ms, budget.expired) == (2_000, False)
    with budget.held():
        now[0] += 1
    assert budget.expired


def test_a_call_that_fails_has_spent_its_time_too() -> None:
    now = [0.0]
    budget = ExecutionBudget(lambda: now[0], ceiling_ms=10)

    def burst() -> None:
        with budget.held():
            now[0] += 11
            raise RuntimeError("the worker died")

    with pytest.raises(RuntimeError):
        burst()
    assert budget.expired
