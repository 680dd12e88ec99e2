"""An owned backend runs the host's own mathematics, so its numbers are those of the reference worker."""

from __future__ import annotations

import numpy as np
import pytest

from synapse_host.hookspecs import Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.testing.conformance.agreement import distance, within_bound
from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.embedding import POOLINGS
from synapse_host.testing.conformance.premises import company_changes_nothing

REFERENCE = "reference"
#: Tokens of the rows that are compared: edges of the buckets, and one that leaves the fine buckets.
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 100, 257)


class Reference:
    """Vectors beside those of the built-in backend ``reference``, within ``ops.tolerances.END_TO_END``."""

    def test_vectors_agree_with_the_reference(self, conformance_bench: Bench) -> None:
        if not conformance_bench.description.owned:
            pytest.skip("not an owned backend: its numbers are its own")
        conformance_bench.assume(company_changes_nothing)
        if conformance_bench.model.packages:
            pytest.skip("packages hold what they compute: the reference does not read them")
        served, reference = conformance_bench.shared(), conformance_bench.start_served(backend=REFERENCE)
        rows = conformance_bench.rows_of([n for n in LENGTHS if n <= conformance_bench.model.max_tokens], salt=40)
        for pooling in POOLINGS:
            for normalize in (True, False):
                wanted = reference.embed(rows, pooling=pooling, normalize=normalize)
                _compare(conformance_bench, wanted, served.embed(rows, pooling=pooling, normalize=normalize), pooling)
        reference.session.stop()


def _compare(bench: Bench, wanted: np.ndarray, found: np.ndarray, pooling: Pooling) -> None:
    bound = END_TO_END[bench.dtype]
    for a, b in zip(wanted, found, strict=True):
        cosine, error = distance(a, b)
        assert within_bound(bench.dtype, a, b), (
            f"pooling {pooling}: cosine {cosine:.7f} and error {error:.2g} to the reference; "
            f"{bench.dtype} must keep {bound.min_cosine} and {bound.max_abs_error:.2g}"
        )
