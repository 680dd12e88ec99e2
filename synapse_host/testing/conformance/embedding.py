"""Vectors: which row they belong to, and that nothing but the row decides them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from synapse_host.hookspecs import Pooling
from synapse_host.testing.conformance import premises
from synapse_host.testing.conformance.agreement import distance, within_bound
from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.premises import PLAIN_LENGTH, a_row_is_served, check_values
from synapse_host.testing.conformance.sessions import Refused, Vectors

POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")
#: How far from 1 the length of a normalised vector may be, by activation type.
_UNIT = {"f32": 1e-4, "f16": 1e-2, "bf16": 2e-2}
#: ERR codes with which a backend says that it does not have a pooling, or vectors that are not normalised.
_NOT_DECLARED = ("unsupported_request", "invalid_request", "config_invalid")


class Embedding:
    """EMBED_BATCH on one loaded model."""

    def test_a_vector_has_the_announced_dims(self, conformance_bench: Bench) -> None:
        conformance_bench.check(a_row_is_served)

    def test_different_rows_get_different_vectors(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.rows_are_distinct)

    def test_results_come_in_the_order_of_the_batch(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.order_is_kept)

    def test_a_row_is_the_same_alone_and_in_a_batch(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.batching_changes_nothing)

    def test_a_row_is_the_same_beside_longer_and_shorter_rows(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.company_changes_nothing)

    def test_rows_of_every_edge_length_are_served(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.edge_lengths_are_served)

    def test_the_same_request_twice_gives_the_same_vectors(self, conformance_bench: Bench) -> None:
        conformance_bench.check(premises.requests_repeat)

    @pytest.mark.parametrize("place", ["first", "middle", "last"])
    def test_every_token_of_a_row_counts(self, conformance_bench: Bench, place: str) -> None:
        conformance_bench.assume(a_row_is_served)
        (row,) = conformance_bench.rows_of([min(100, conformance_bench.model.max_tokens)], salt=7)
        other, at = row.copy(), {"first": 0, "middle": len(row) // 2, "last": -1}[place]
        other[at] = 1 if row[at] != 1 else 2
        before, after = (conformance_bench.shared().embed([tokens])[0] for tokens in (row, other))
        assert before.tobytes() != after.tobytes(), f"another {place} token of {len(row)} changed nothing"

    def test_token_0_is_no_padding(self, conformance_bench: Bench) -> None:
        """Masks and pooling follow the token counts; in some models the pad id is an ordinary token."""
        conformance_bench.assume(a_row_is_served)
        (row,) = conformance_bench.rows_of([PLAIN_LENGTH], salt=8)
        longer = np.concatenate([row, np.zeros(2, dtype=np.int32)])
        vectors = [_served_raw(conformance_bench, tokens) for tokens in (row, longer)]
        assert vectors[0].tobytes() != vectors[1].tobytes(), "two more tokens of id 0 changed nothing"
        check_values(conformance_bench.shared().embed([np.zeros(3, dtype=np.int32)]), [3])

    def test_normalize_decides_the_length_and_not_the_direction(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        rows = conformance_bench.rows_of([PLAIN_LENGTH, 5, 9], salt=9)
        unit = np.concatenate([conformance_bench.shared().embed([row]) for row in rows])
        lengths = np.linalg.norm(unit.astype(np.float64), axis=1)
        assert np.abs(lengths - 1).max() <= _UNIT[conformance_bench.dtype], f"normalised vectors are {lengths} long"
        plain = np.concatenate([_served_as(conformance_bench, row, "mean", normalize=False) for row in rows])
        longest = np.linalg.norm(plain.astype(np.float64), axis=1)
        assert np.abs(longest - 1).max() > 1e-3, "vectors come normalised although normalize is false"
        cosines = [distance(a, b)[0] for a, b in zip(unit, plain, strict=True)]
        assert min(cosines) >= 0.999, f"normalize turns a vector: cosines {cosines}"

    def test_each_pooling_is_another_one(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(premises.requests_repeat)
        one, many = conformance_bench.rows_of([1, PLAIN_LENGTH], salt=10)
        of_one, of_many = {}, {}
        for pooling in POOLINGS:
            try:
                of_one[pooling] = conformance_bench.shared().embed([one], pooling=pooling)[0]
                of_many[pooling] = conformance_bench.shared().embed([many], pooling=pooling)[0]
            except Refused as refusal:
                if refusal.code not in _NOT_DECLARED:
                    raise
        assert of_one, "no pooling is served"
        for a, b in combinations(of_one, 2):
            same = within_bound(conformance_bench.dtype, of_one[a], of_one[b])
            assert same, f"{a} and {b} differ over a row of one token"
            assert of_many[a].tobytes() != of_many[b].tobytes(), f"{a} and {b} are the same over {PLAIN_LENGTH} tokens"


def _served_as(bench: Bench, row: np.ndarray, pooling: Pooling, *, normalize: bool) -> Vectors:
    """The vector of one row; skips the test when the backend says that it has no such vectors."""
    try:
        return bench.shared().embed([row], pooling=pooling, normalize=normalize)
    except Refused as refusal:
        if refusal.code in _NOT_DECLARED:
            pytest.skip(f"the backend has no such vectors: {refusal.message}")
        raise


def _served_raw(bench: Bench, row: np.ndarray) -> Vectors:
    """The vector of one row, not normalised where the backend has that: a length may be all that differs."""
    try:
        return bench.shared().embed([row], normalize=False)
    except Refused:
        return bench.shared().embed([row])
