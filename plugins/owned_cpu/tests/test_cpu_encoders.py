"""The other encoders on the CPU backend: close to transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synapse_owned_cpu import plugin

from synapse_host.hookspecs import DType, Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.recorded_encoders import POOLINGS, RECORDED, embedded, recorded_encoder
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert

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


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_past_1024_tokens_runs_in_segments_and_agrees_with_the_reference(tmp_path: Path, dtype: DType) -> None:
    tiny = TinyModernBert(45, 20, 4, 2, 26, 97, 2100, span=66)
    write_model(tmp_path, tiny)
    batch = batch_of(seeded_rows([2099, 1100, 5], tiny.vocab), "cls")
    with loaded_model(reference_plugin, tmp_path, max_tokens=2100) as model:
        wanted = reference_plugin.synapse_embed(model, batch, ignore_progress)
    seen: list[int] = []
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=2100) as model:
        found = plugin.synapse_embed(model, batch, lambda done, phase: seen.append(done))
    assert seen == list(range(1, 10))
    assert np.abs(found - wanted).max() <= END_TO_END[dtype].max_abs_error


@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_give_the_bits_of_one_graph(tmp_path: Path, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_encoder(FIXTURES, "modernbert/short_window")
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        whole = digests(model, recorded.rows)
    monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        assert digests(model, recorded.rows) == whole


@pytest.mark.parametrize("stored", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["xlm_roberta/two_layers", "modernbert/biased"])
def test_checkpoints_of_half_precision_are_read_as_they_are(name: str, stored: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model, stored)
    found = []
    for backend in (reference_plugin, plugin):
        with loaded_model(backend, tmp_path, dtype="f32", max_tokens=recorded.longest) as model:
            found.append(embedded(backend, model, recorded.rows, "mean"))
    assert np.abs(found[1] - found[0]).max() <= END_TO_END["f32"].max_abs_error
    # Rounded weights, but the same model.
    assert 1e-5 < np.abs(found[0] - recorded.f32["mean"]).max() < 0.05


def digests(model: object, rows: list[np.ndarray], pooling: Pooling = "mean") -> list[str]:
    return [vector_digest(vector) for vector in embedded(plugin, model, rows, pooling)]
