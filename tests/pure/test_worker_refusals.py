from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.worker_fault import WorkerFault, crash_error, describe_exit
from synapse_host.worker.refusal_frame import refusal_frame
from synapse_host.worker_protocol.codec import decode_response, encode
from synapse_host.worker_protocol.field_checks import LONGEST_REQ_ID
from synapse_host.worker_protocol.item_refusal import refusal_text, refused_item
from synapse_host.worker_protocol.messages import ERR_CODES, SMALLEST_MAX_FRAME, Err

EXPECTED = {
    "artifact_invalid": "artifact_invalid",
    "package_digest_mismatch": "artifact_invalid",
    "head_tensor_missing": "artifact_invalid",
    "config_invalid": "invalid_request",
    "model_unsupported": "invalid_request",
    "operation_mismatch": "invalid_request",
    "unsupported_request": "invalid_request",
    "invalid_request": "invalid_request",
    "unknown_type": "invalid_request",
    "backend_missing": "backend_unavailable",
    "ane_private_api_unavailable": "backend_unavailable",
    "ane_lane_busy": "ane_resources_exhausted",
    "ane_resources_exhausted": "ane_resources_exhausted",
    "ane_residency_limit": "ane_resources_exhausted",
}


@pytest.mark.parametrize("code", [*ERR_CODES, "a_code_of_next_year"])
def test_every_err_code_becomes_a_stable_error(code: str) -> None:
    error = to_synapse_error(WorkerRefusal(code, "the tensor 'x' is missing"))
    assert error.code == EXPECTED.get(code, "engine_crashed")
    details = error.details or {}
    assert details.pop("reason") == code
    # What every refusal of a backend has, here without the model that only the lane knows.
    unknown = {"catalog_id": None, "lane_id": None, "backends": []}
    assert details == (unknown if error.code == "backend_unavailable" else {})
    assert "the tensor 'x' is missing" in error.message


@pytest.mark.parametrize("code", ["non_finite_output", "zero_output"])
def test_bad_output_is_permanent_and_names_the_item(code: str) -> None:
    error = to_synapse_error(WorkerRefusal(code, refusal_text("doc 7", "holds NaN")))
    assert error.to_wire()["class"] == "permanent"
    assert error.to_wire()["safe_to_retry_same_request"] is False
    assert "retry_after_ms" not in error.to_wire()
    assert error.details == {"reason": code, "item_id": "doc 7"}


@pytest.mark.parametrize("code", ["ane_lane_busy", "ane_resources_exhausted", "ane_residency_limit"])
def test_room_on_the_neural_engine_comes_back(code: str) -> None:
    wire = to_synapse_error(WorkerRefusal(code, "")).to_wire()
    assert (wire["class"], wire["retry_after_ms"], wire["safe_to_retry_same_request"]) == ("transient", 250, True)


def test_a_failed_inference_is_transient() -> None:
    assert to_synapse_error(WorkerRefusal("oom", "")).to_wire()["class"] == "transient"


def test_the_callers_item_id_wins() -> None:
    error = to_synapse_error(WorkerRefusal("zero_output", refusal_text("a", "zero")), item_id="b")
    assert error.details == {"reason": "zero_output", "item_id": "b"}


@given(st.text(), st.text())
def test_an_item_id_survives_the_text(item_id: str, problem: str) -> None:
    assert refused_item(refusal_text(item_id, problem)) == item_id


@pytest.mark.parametrize("text", ["", "out of memory", "item ", "item 7: x", 'item "a"', 'item "a" b', "item {"])
def test_a_text_without_an_item_names_none(text: str) -> None:
    assert refused_item(text) is None


@pytest.mark.parametrize(
    ("returncode", "words"), [(0, "status 0"), (5, "status 5"), (-9, "signal SIGKILL"), (-200, "signal 200")]
)
def test_an_exit_is_told_in_words(returncode: int, words: str) -> None:
    assert describe_exit(returncode) == words
    assert describe_exit(None) == "unknown"


def test_a_crash_carries_what_a_diagnosis_needs() -> None:
    error = crash_error(WorkerFault("silence", "no word"), worker_id="w", returncode=-9, output_tail="stderr: x\n")
    assert error.to_wire() == {
        "code": "engine_crashed",
        "class": "transient",
        "safe_to_retry_same_request": True,
        "message": "worker 'w': no word",
        "retry_after_ms": 250,
        "details": {"worker_id": "w", "reason": "silence", "exit": "signal SIGKILL", "output_tail": "stderr: x\n"},
    }


@given(
    st.text(), st.sampled_from(["x", "\n", "ä", "\U0001f4a5"]), st.integers(0, 5000), st.sampled_from(["oom", "luck"])
)
def test_a_refusal_fits_the_smallest_frame_whatever_its_text(text: str, filler: str, times: int, code: str) -> None:
    req_id = "\U0001f4a5" * LONGEST_REQ_ID
    err = refusal_frame(code, text + filler * times, req_id, SMALLEST_MAX_FRAME)
    payload = encode(err)
    assert len(payload) <= SMALLEST_MAX_FRAME
    assert decode_response(payload) == err
    assert err.code in ERR_CODES


def test_a_refusal_that_fits_is_kept_whole() -> None:
    assert refusal_frame("oom", "x" * 3000, "r-1", SMALLEST_MAX_FRAME) == Err("oom", "x" * 3000, "r-1")


def test_a_code_of_a_plugins_own_moves_into_the_text() -> None:
    assert refusal_frame("out_of_luck", "not today", "r", 4096) == Err(
        "inference_failed", "out_of_luck: not today", "r"
    )


def test_a_shortened_refusal_still_names_its_item() -> None:
    err = refusal_frame("oom", refusal_text("7", "x" * 10_000), "r", SMALLEST_MAX_FRAME)
    assert refused_item(err.msg) == "7"
