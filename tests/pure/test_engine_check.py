"""The judgement of a backend's own numbers: every tolerance at 0.9 and 1.1, and what is wrong by name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synapse_host.certification.engine_check import judge_engine
from synapse_host.hookspecs import CheckNumbers, DType, Task
from synapse_host.tolerances import FLOORS, OP_UNITS, SCORE_LIMITS, op_bound

DTYPES: tuple[DType, ...] = ("f32", "f16", "bf16")
RNG = np.random.default_rng(5)


def unit_rows(rows: int, width: int) -> np.ndarray:  # type: ignore[type-arg]
    drawn = RNG.standard_normal((rows, width))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


REFERENCE = [
    *(CheckNumbers("operation", op, "a case: the result", unit_rows(1, 9) * 3, 2.5) for op in OP_UNITS),
    *(CheckNumbers("vectors", family, "vectors", unit_rows(5, 8)) for family in ("bert", "qwen3")),
    *(
        CheckNumbers("scores", family, "scores", unit_rows(40, 1) * 0 + RNG.standard_normal((40, 1)).astype(np.float32))
        for family in ("bert", "qwen3")
    ),
]


def changed(subject: str, kind: str, values: np.ndarray) -> list[CheckNumbers]:  # type: ignore[type-arg]
    return [
        replace(check, values=np.asarray(values)) if (check.subject, check.kind) == (subject, kind) else check
        for check in REFERENCE
    ]


def judged(lane: list[CheckNumbers], dtype: DType = "f32", family: str = "bert", task: Task = "embed") -> list[str]:
    return judge_engine(lane, REFERENCE, dtype=dtype, family=family, task=task).missed


def values_of(subject: str, kind: str) -> np.ndarray:  # type: ignore[type-arg]
    (check,) = [check for check in REFERENCE if (check.subject, check.kind) == (subject, kind)]
    return check.values.astype(np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_passes_its_own_judgement(dtype: DType) -> None:
    findings = judge_engine(REFERENCE, REFERENCE, dtype=dtype, family="bert", task="rerank")
    assert findings.missed == []
    assert findings.evidence["operations"] == len(OP_UNITS) == 31
    assert (findings.evidence["failed"], findings.evidence["shares"]) == ([], {})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OP_UNITS)
def test_each_operation_is_accepted_at_nine_tenths_of_its_tolerance_and_rejected_at_eleven(
    op: str, dtype: DType
) -> None:
    bound = op_bound(op, dtype, magnitude=2.5)
    for share, accepted in ((0.9, True), (1.1, False)):
        values = values_of(op, "operation")
        values[0, 4] += share * bound if bound else (0.0 if accepted else 1e-6)
        missed = judged(changed(op, "operation", values), dtype)
        assert bool(missed) is not accepted
        assert accepted or missed[0].startswith(f"operation {op} (a case: the result): off by")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tiny_model_is_accepted_at_nine_tenths_of_its_tolerance_and_rejected_at_eleven(dtype: DType) -> None:
    for share, accepted in ((0.9, True), (1.1, False)):
        cosine = 1 - share * (1 - FLOORS[dtype].magnified_min_cosine)
        values = values_of("bert", "vectors")
        aside = np.zeros(8)
        aside[:2] = -values[2, 1], values[2, 0]
        values[2] = cosine * values[2] + math.sqrt(1 - cosine**2) * aside / np.linalg.norm(aside)
        missed = judged(changed("bert", "vectors", values), dtype)
        assert bool(missed) is not accepted, (dtype, share, missed)

        scores = values_of("bert", "scores")
        noise = RNG.standard_normal(scores.shape)
        spread = scores - scores.mean()
        noise -= noise.mean() + spread * (noise * spread).sum() / (spread**2).sum()
        r = 1 - share * (1 - SCORE_LIMITS[dtype].magnified_min_pearson)
        scores += noise * np.linalg.norm(spread) / np.linalg.norm(noise) * math.sqrt(1 / r**2 - 1)
        missed = judged(changed("bert", "scores", scores), dtype, task="rerank")
        assert bool(missed) is not accepted, (dtype, share, missed)
        assert accepted or "magnifying model of bert" in missed[0]


def test_the_models_of_other_families_and_tasks_are_evidence_alone() -> None:
    findings = judge_engine(
        changed("qwen3", "vectors", -values_of("qwen3", "vectors")), REFERENCE, dtype="f32", family="bert", task="embed"
    )
    assert findings.missed == []
    assert "magnifying model of qwen3" in findings.evidence["failed"][0]
    assert findings.evidence["families"]["qwen3 vectors"] == pytest.approx(-1)
    assert judged(changed("bert", "scores", -values_of("bert", "scores"))) == []


def test_what_is_missing_raised_misshapen_or_no_number_is_named() -> None:
    cases = {
        "did not compute it": [check for check in REFERENCE if check.subject != "linear"],
        "RuntimeError: no kernel": [
            replace(check, values=np.empty((0, 0), np.float32), fault="RuntimeError: no kernel")
            if check.subject == "linear"
            else check
            for check in REFERENCE
        ],
        "shape (1, 8)": changed("linear", "operation", values_of("linear", "operation")[:, :8]),
        "not finite": changed("linear", "operation", values_of("linear", "operation") * np.nan),
    }
    for said, lane in cases.items():
        (missed,) = judged(lane)
        assert missed.startswith("operation linear (a case: the result): ")
        assert said in missed


def test_a_model_of_zeros_is_rejected_and_misses_come_in_the_order_of_the_operations() -> None:
    assert judged(changed("bert", "vectors", values_of("bert", "vectors") * 0))
    lane = [
        replace(check, values=check.values + 1) if check.subject in ("attention", "linear", "rope") else check
        for check in REFERENCE
    ]
    assert [line.split()[1] for line in judged(lane)] == ["linear", "rope", "attention"]
