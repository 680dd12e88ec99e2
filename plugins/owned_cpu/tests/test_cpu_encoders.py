"""The other encoders on the CPU backend: close to transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synapse_owned_cpu import plugin

from synapse_host.hookspecs import DType, Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.testing.engine_runs import loaded_model, vector_digest
from synapse_host.testing.recorded_encoders import POOLINGS, RECORDED, embedded, recorded_encoder
from synapse_host.testing.tiny_models import write_model

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES = plugin.synapse_describe().dtypes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RECORDED)
def test_tiny_encoders_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded, bound = recorded_encoder(FIXTURES, name), END_TO_END[dtype]
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        found = {pooling: embedded(plugin, model, recorded.rows, pooling).astype(np.float64) for pooling in POOLINGS}
    for pooling, vectors in found.items():
        wanted = recorded.f64[pooling]
        assert np.sum(vectors * wanted, axis=1).min() >= bound.min_cosine
        assert np.abs(vectors - wanted).max() <= bound.max_abs_error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RECORDED)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    # Rows of one bucket share a call: each length comes twice more, one and two tokens shorter.
    rows = [*recorded.rows, *(row[:-1] for row in recorded.rows[2:]), *(row[:-2] for row in recorded.rows[4:])]
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        alone = [digests(model, [row])[0] for row in rows]
        for seed in (1, 2):
            order = np.random.default_rng(seed).permutation(len(rows))
            assert digests(model, [rows[place] for place in order]) == [alone[place] for place in order]


def digests(model: object, rows: list[np.ndarray], pooling: Pooling = "mean") -> list[str]:
    return [vector_digest(vector) for vector in embedded(plugin, model, rows, pooling)]
