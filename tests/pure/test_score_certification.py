"""How close two sets of rerank scores are, and which floors that misses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synapse_host.certification.gates import MIN_KENDALL_TAU, MIN_PEARSON, SCORE_LIMITS, score_failures
from synapse_host.certification.probe_pairs import POOLS, probe_pairs
from synapse_host.certification.score_metrics import ScoreAgreement, kendall_tau, pearson, score_agreement
from synapse_host.errors import InvalidRequest
from synapse_host.operations.reranking import work_class
from synapse_host.tokenization.pairs import ComposedPair

PERFECT = ScoreAgreement(72, 1.0, 0.0, 0.0, 1.0)
REFERENCE = np.array([-8.0, -1.0, 0.0, 0.5, 2.0, 9.0])


def test_equal_scores_agree_fully() -> None:
    found = score_agreement(REFERENCE, REFERENCE, "logit", [range(6)])
    assert found == replace(PERFECT, pairs=6, pearson=pytest.approx(1.0))


def test_a_logit_error_is_relative_where_the_logit_is_large() -> None:
    lane = REFERENCE + np.array([0.08, 0.03, 0.0, 0.0, 0.0, -0.18])
    found = score_agreement(lane, REFERENCE, "logit", [])
    assert found.max_logit_error == pytest.approx(0.03)
    sigmoid = 1 / (1 + np.exp(-np.array([-0.97, -1.0])))
    assert found.max_probability_error == pytest.approx(sigmoid[0] - sigmoid[1])


def test_probabilities_are_compared_as_they_are() -> None:
    reference = np.array([0.1, 0.5, 0.9])
    found = score_agreement(reference + np.array([0.0, 0.015, 0.0]), reference, "probability", [range(3)])
    assert found.max_probability_error == pytest.approx(0.015)
    assert found.max_logit_error is None


def test_extreme_logits_overflow_nothing() -> None:
    found = score_agreement(np.array([-900.0, 900.0]), np.array([-800.0, 800.0]), "logit", [range(2)])
    assert found.max_probability_error == 0.0


def test_pearson_is_the_correlation_and_nan_without_variation() -> None:
    other = np.array([3.0, -1.0, 0.5, 0.0, 2.5, 4.0])
    assert pearson(other, REFERENCE) == pytest.approx(np.corrcoef(other, REFERENCE)[0, 1])
    assert np.isnan(pearson(REFERENCE, np.ones(6)))


def test_tau_counts_clear_candidates_within_a_pool_alone() -> None:
    reference = np.array([0.1, 0.2, 0.205, 0.9])
    assert kendall_tau(np.array([0.1, 0.3, 0.2, 0.9]), reference, [range(4)]) == 1.0
    assert kendall_tau(np.array([0.2, 0.1, 0.3, 0.9]), reference, [range(4)]) == pytest.approx(3 / 5)
    tied = kendall_tau(np.array([0.1, 0.1, 0.3, 0.9]), reference, [range(4)])
    assert tied == pytest.approx(4 / 5)
    assert kendall_tau(np.array([0.9, 0.8, 0.7, 0.1]), reference, [[0], [3]]) == 1.0


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(3,\)"):
        score_agreement(np.ones(2), np.ones(3), "logit", [])


@pytest.mark.parametrize("dtype", sorted(SCORE_LIMITS))
def test_each_floor_is_exact_and_named_with_both_numbers(dtype: Any) -> None:
    limits = SCORE_LIMITS[dtype]
    at_limit = ScoreAgreement(72, MIN_PEARSON, limits.max_probability_error, limits.max_logit_error, MIN_KENDALL_TAU)
    magnified = replace(PERFECT, pearson=limits.magnified_min_pearson)
    assert score_failures(dtype, at_limit, magnified) == []
    past = ScoreAgreement(
        72, 0.9989, limits.max_probability_error * 1.1, limits.max_logit_error * 1.1, MIN_KENDALL_TAU - 0.001
    )
    missed = score_failures(dtype, past, replace(magnified, pearson=limits.magnified_min_pearson - 1e-6))
    assert [line.split(" is ")[0] for line in missed] == [
        "Pearson correlation",
        "Kendall tau",
        f"Pearson correlation on the magnifying model in {dtype}",
        f"probability error in {dtype}",
        f"logit error in {dtype}",
    ]
    assert missed[0].endswith("0.9989000, below 0.999")


def test_not_a_number_never_passes() -> None:
    nan = float("nan")
    assert len(score_failures("bf16", ScoreAgreement(72, nan, nan, nan, nan), replace(PERFECT, pearson=nan))) == 5
    assert score_failures("f32", replace(PERFECT, max_logit_error=None), PERFECT) == []


class Characters:
    """Composes a character to a token, so that rows tell where they come from."""

    max_tokens = 200

    def compose(self, query: str, documents: list[str], *, limit: int | None = None) -> list[ComposedPair]:
        if len(query) + 1 >= (limit or self.max_tokens):
            raise InvalidRequest("no room")
        rows = [[*map(ord, f"{query}|{text}")][: limit or self.max_tokens] for text in documents]
        return [ComposedPair(row, len(row), len(row), False) for row in rows]


def test_the_probe_s_pairs_are_many_distinct_and_cut_at_edges() -> None:
    found = probe_pairs(Characters())  # type: ignore[arg-type]
    assert len(found.pools) == POOLS
    assert sorted(place for pool in found.pools for place in pool) == list(range(72))
    assert len({tuple(row) for row in found.rows}) >= 64
    for pool in found.pools:
        queries = {"".join(map(chr, found.rows[place])).split("|")[0] for place in pool}
        assert len(queries) == 1
        first = "".join(map(chr, found.rows[pool[0]]))
        assert first == f"{first.split('|')[0]}|{first.split('|')[0]}"[: Characters.max_tokens]
    edges = [len(row) for row in found.rows[72:]]
    assert edges == sorted(edges)
    assert {127, 128, 129} <= set(edges) <= set(range(16, 201))


@pytest.mark.parametrize(
    ("candidates", "expected"), [(1, "interactive"), (20, "interactive"), (21, "bulk"), (5000, "bulk")]
)
def test_more_than_20_candidates_are_bulk(candidates: int, expected: str) -> None:
    assert work_class(candidates) == expected
