"""The facts other tests build on, from the ground up. Each is a test of its own, and the premise of those above it.

They are made so that one mistake breaks one of them: vectors in another order, for example, are still all different,
and a row that lost some bits in a batch is not in another row's place.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest

from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.sessions import Died, Refused, TokenIds, Vectors

#: Rows of the batch in which mixed-up rows are looked for.
MANY = 64
#: Tokens of a row where the length does not matter.
PLAIN_LENGTH = 16
#: Lengths around the sizes that kernels and buckets are cut to; the limit of the model is added.
EDGES = (1, 2, 31, 32, 33, 127, 128, 129, 511, 512)


def edges(bench: Bench) -> list[int]:
    """The edge lengths the model takes, shortest first, its longest row among them."""
    limit = bench.model.max_tokens
    return sorted({length for length in (*EDGES, limit) if length <= limit})


def a_model_is_loaded(bench: Bench) -> None:
    """LOAD is answered with the facts of the model."""
    if "embed" not in bench.description.tasks:
        pytest.skip("the suite knows the task embed alone, which the backend does not declare")
    loaded = bench.shared().loaded
    assert loaded.dims > 0
    if loaded.buckets is not None:
        assert loaded.buckets == sorted(set(loaded.buckets)), f"buckets {loaded.buckets} are not ascending"
        assert loaded.buckets[0] > 0, f"bucket {loaded.buckets[0]} holds no token"


def progress_only_grows(bench: Bench) -> None:
    """Counters strictly grow within a request, and setup never follows inference."""
    bench.assume(a_model_is_loaded)
    served = bench.shared()
    for rows in (1, 8):
        # Whether the batch is answered is another premise; an unlawful report is the reason that it is not.
        with suppress(Refused, Died):
            served.embed(bench.rows_of([PLAIN_LENGTH] * rows))
        reports = served.session.reports()
        counters, phases = [completed for completed, _ in reports], [phase for _, phase in reports]
        growing = all(before < after for before, after in pairwise([0, *counters]))
        assert growing, f"progress of a batch of {rows} counted {counters}; it must grow with each report"
        assert set(phases) <= {"setup", "inference"}, f"progress of a batch named the phases {phases}"
        assert phases == sorted(phases, reverse=True), f"progress went back from inference to setup: {phases}"


def a_row_is_served(bench: Bench) -> None:
    """One row becomes one vector of the dims that LOADED announced, finite and not zero."""
    bench.assume(a_model_is_loaded, progress_only_grows)
    served = bench.shared()
    vectors = served.embed(bench.rows_of([PLAIN_LENGTH]))
    assert vectors.shape == (1, served.loaded.dims), f"one row of {served.loaded.dims} dims came as {vectors.shape}"
    check_values(vectors, [PLAIN_LENGTH])


def rows_are_distinct(bench: Bench) -> None:
    """Different rows of one batch get different vectors."""
    bench.assume(a_row_is_served)
    vectors = bench.shared().embed(bench.rows_of([PLAIN_LENGTH] * MANY))
    seen: dict[bytes, int] = {}
    for place, vector in enumerate(vectors):
        twin = seen.setdefault(vector.tobytes(), place)
        assert twin == place, f"rows {twin} and {place} of {MANY} different ones got the same vector"


def order_is_kept(bench: Bench) -> None:
    """Results come in the order of the batch, whatever order the rows are computed in."""
    bench.assume(rows_are_distinct)
    lengths = [int(length) for length in np.random.default_rng(3).permutation(np.arange(MANY) % _longest(bench) + 1)]
    rows = bench.rows_of(lengths, salt=1)
    together, alone = bench.shared().embed(rows), _alone(bench, rows)
    for place, vector in enumerate(alone):
        found = [at for at, other in enumerate(together) if bench.promise.kept(vector, other)]
        # A row found nowhere has changed; that is judged by the premises that follow.
        assert place in found or not found, f"the vector of row {place} came in place {found[0]} of {MANY}"


def requests_repeat(bench: Bench) -> None:
    """The same request gives the same vectors."""
    bench.assume(a_row_is_served)
    rows = bench.rows_of([PLAIN_LENGTH, 3, 2 * PLAIN_LENGTH], salt=6)
    first, second = (bench.shared().embed(rows) for _ in range(2))
    changed = _changed(bench, first, second)
    assert changed == [], f"rows {changed} differ between two equal requests; expected is equality {bench.promise}"


def edge_lengths_are_served(bench: Bench) -> None:
    """A row of any length up to the limit becomes a vector."""
    bench.assume(a_row_is_served)
    lengths = edges(bench)
    for length, row in zip(lengths, bench.rows_of(lengths, salt=5), strict=True):
        check_values(bench.shared().embed([row]), [length])


def batching_changes_nothing(bench: Bench) -> None:
    """A row has the same vector alone and in a batch of rows of its length, whatever its place."""
    bench.assume(order_is_kept, requests_repeat)
    rows = bench.rows_of([PLAIN_LENGTH] * 9, salt=2)
    alone = _alone(bench, rows)
    for count in (2, 3, len(rows)):
        together = bench.shared().embed(rows[:count])
        changed = _changed(bench, alone[:count], together)
        assert changed == [], f"rows {changed} of {count} equally long ones differ from the same rows alone"


def company_changes_nothing(bench: Bench) -> None:
    """A row has the same vector alone and beside longer and shorter rows."""
    bench.assume(batching_changes_nothing, edge_lengths_are_served)
    lengths = edges(bench)
    rows = bench.rows_of(lengths, salt=3)
    order = [int(place) for place in np.random.default_rng(4).permutation(len(rows))]
    together = bench.shared().embed([rows[place] for place in order])[np.argsort(order)]
    changed = [lengths[place] for place in _changed(bench, _alone(bench, rows), together)]
    assert changed == [], f"rows of {changed} tokens differ, {bench.promise}, from the same rows alone"


def check_values(vectors: Vectors, lengths: list[int]) -> None:
    """Every vector is finite and not zero."""
    for vector, length in zip(vectors, lengths, strict=True):
        assert np.isfinite(vector).all(), f"the vector of a row of {length} tokens holds NaN or infinity"
        assert vector.any(), f"the vector of a row of {length} tokens is all zeros"


def _alone(bench: Bench, rows: list[TokenIds]) -> Vectors:
    return np.concatenate([bench.shared().embed([row]) for row in rows])


def _changed(bench: Bench, wanted: Vectors, found: Vectors) -> list[int]:
    return [place for place, (a, b) in enumerate(zip(wanted, found, strict=True)) if not bench.promise.kept(a, b)]


def _longest(bench: Bench) -> int:
    return min(MANY, bench.model.max_tokens)
