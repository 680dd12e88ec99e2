"""Scores: which sequence they belong to, that nothing but the sequence decides them, and that they are raw."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from synapse_host.testing.conformance.bench import Bench, Ranker
from synapse_host.testing.conformance.sessions import Scores, TokenIds
from synapse_host.tolerances import SCORE_LIMITS

#: Tokens of the sequences that are scored: one special token, edges of buckets, and all kinds between.
LENGTHS = (3, 200, 16, 33, 7, 128, 17, 65)


class Reranking:
    """RERANK_SEQUENCES on a cross-encoder of the suite's own, for backends that declare the task."""

    def test_scores_come_in_the_order_of_the_sequences(self, conformance_bench: Bench) -> None:
        conformance_bench.check(scores_keep_their_order)

    def test_a_score_is_the_same_alone_and_in_company(self, conformance_bench: Bench) -> None:
        conformance_bench.check(company_moves_no_score)

    def test_scores_agree_with_the_reference(self, conformance_bench: Bench) -> None:
        """Raw scores: a backend that makes probabilities of them is far off."""
        if not conformance_bench.description.owned:
            pytest.skip("not an owned backend: its numbers are its own")
        conformance_bench.assume(company_moves_no_score)
        ranker, reference = conformance_bench.ranker(), conformance_bench.start_ranker(backend="reference")
        rows = conformance_bench.rows_of(LENGTHS, salt=51)
        wanted, found = reference.rerank(rows), ranker.rerank(rows)
        reference.session.stop()
        off, most = _off(wanted, found), SCORE_LIMITS[conformance_bench.dtype].max_logit_error
        assert off <= most, f"scores are off by {off:.3g}; {conformance_bench.dtype} may be off by {most:.3g}"


def scores_keep_their_order(bench: Bench) -> None:
    """Scores are finite and come in the order of the sequences."""
    ranker, rows = bench.ranker(), bench.rows_of(LENGTHS, salt=50)
    alone, together = _alone(ranker, rows), ranker.rerank(rows)
    assert together.shape == (len(rows),)
    assert np.isfinite(together).all(), f"scores {together} are not all finite"
    spread = min(after - before for before, after in pairwise(sorted(alone)))
    assert spread > 0, f"different sequences got the same score: {alone}"
    for place, score in enumerate(alone):
        found = np.flatnonzero(np.abs(together - score) < spread / 4)
        # A score found nowhere has changed; that is judged by the premise that follows.
        assert place in found or not found.size, f"the score of sequence {place} came in place {found[0]}"


def company_moves_no_score(bench: Bench) -> None:
    """A sequence has the same score alone and beside longer and shorter ones."""
    bench.assume(scores_keep_their_order)
    ranker, rows = bench.ranker(), bench.rows_of(LENGTHS, salt=50)
    alone, together = _alone(ranker, rows), ranker.rerank(rows)
    off, most = _off(alone, together), SCORE_LIMITS[bench.dtype].max_logit_error
    kept = alone.tobytes() == together.tobytes() if bench.promise.exact else off <= most
    assert kept, f"scores differ by {off:.3g} from those of the same sequences alone; expected {bench.promise}"


def _alone(ranker: Ranker, rows: list[TokenIds]) -> Scores:
    return np.concatenate([ranker.rerank([row]) for row in rows])


def _off(wanted: Scores, found: Scores) -> float:
    """The largest error, relative where a score is past 1."""
    return float((np.abs(wanted - found) / np.maximum(1, np.abs(wanted))).max())
