from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synapse_host.certification.gates import FLOORS, Gates, failures
from synapse_host.certification.metrics import Agreement, agreement, worst_decile_overlap

GATES = Gates(mean_cosine=0.999, decile_overlap=0.9)
PERFECT = Agreement(64, 1.0, 1.0, 0.0, 0.0, 1.0)


def unit_rows(rows: int, dims: int, seed: int = 1) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dims))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_equal_vectors_agree_fully() -> None:
    vectors = unit_rows(40, 16)
    found = agreement(vectors, vectors)
    assert found.mean_cosine == pytest.approx(1.0)
    assert found.worst_decile_overlap == 1.0
    assert found.max_abs_error == 0.0


def test_cosine_and_error_are_those_of_the_worst_row() -> None:
    reference = np.eye(10)
    lane = reference.copy()
    lane[3] = [0.0, 0, 0, 0.6, 0.8, 0, 0, 0, 0, 0]
    found = agreement(lane, reference)
    assert found.min_cosine == pytest.approx(0.6)
    assert found.mean_cosine == pytest.approx((9 + 0.6) / 10)
    assert found.max_abs_error == pytest.approx(0.8)


def test_shuffled_rows_lose_their_neighbours() -> None:
    reference = unit_rows(50, 8)
    lane = reference[np.random.default_rng(2).permutation(50)]
    assert worst_decile_overlap(lane, reference) < 0.2


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(2, 4\)"):
        agreement(np.ones((2, 3)), np.ones((2, 4)))


def test_a_perfect_lane_misses_nothing() -> None:
    assert failures("f32", GATES, PERFECT, PERFECT) == []


@pytest.mark.parametrize("dtype", sorted(FLOORS))
def test_each_floor_is_exact_and_named_with_both_numbers(dtype: str) -> None:
    floors = FLOORS[dtype]  # type: ignore[index]
    at_floor = replace(PERFECT, mean_cosine=0.999, worst_decile_overlap=0.9, min_cosine=floors.min_cosine)
    magnified = replace(PERFECT, min_cosine=floors.magnified_min_cosine)
    assert failures(dtype, GATES, at_floor, magnified) == []  # type: ignore[arg-type]
    below = replace(at_floor, mean_cosine=0.9989, worst_decile_overlap=0.89, min_cosine=floors.min_cosine - 1e-6)
    missed = failures(dtype, GATES, below, replace(magnified, min_cosine=0.5))  # type: ignore[arg-type]
    assert [line.split(" is ")[0] for line in missed] == [
        "mean cosine",
        "worst-decile rank overlap",
        f"min cosine in {dtype}",
        f"min cosine on the magnifying model in {dtype}",
    ]
    assert "0.9989000, below 0.999" in missed[0]


def test_not_a_number_never_passes() -> None:
    nan = float("nan")
    broken = Agreement(64, nan, nan, nan, nan, nan)
    assert len(failures("bf16", GATES, broken, broken)) == 5
