"""The encoders on the Vulkan backend: close to transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from synapse_vulkan import plugin

from synapse_host.hookspecs import DType, Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.recorded_encoders import POOLINGS, RECORDED, embedded, recorded_encoder
from synapse_host.testing.models.tiny_models import TinyBert, write_model, write_safetensors
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_static import TinyStatic

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
loaded = partial(loaded_model, settings={"allow_software_device": "true"})
pytestmark = pytest.mark.usefixtures("vulkan_device")


# In float16 one of them: a software device takes seconds to compile what reads such matrices.
@pytest.mark.parametrize(("name", "dtype"), [*((name, "f32") for name in RECORDED), (RECORDED[-1], "f16")])
def test_tiny_encoders_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded, bound = recorded_encoder(FIXTURES, name), END_TO_END[dtype]
    write_model(tmp_path, recorded.model)
    with loaded(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        found = {pooling: embedded(plugin, model, recorded.rows, pooling).astype(np.float64) for pooling in POOLINGS}
    for pooling, vectors in found.items():
        wanted = recorded.f64[pooling]
        assert np.sum(vectors * wanted, axis=1).min() >= bound.min_cosine
        assert np.abs(vectors - wanted).max() <= bound.max_abs_error


@pytest.mark.parametrize("name", RECORDED)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    # Rows of one bucket share a call: each length comes twice more, one and two tokens shorter.
    rows = [*recorded.rows, *(row[:-1] for row in recorded.rows[2:]), *(row[:-2] for row in recorded.rows[4:])]
    write_model(tmp_path, recorded.model)
    with loaded(plugin, tmp_path, max_tokens=recorded.longest) as model:
        alone = [digests(model, [row])[0] for row in rows]
        order = np.random.default_rng(1).permutation(len(rows))
        assert digests(model, [rows[place] for place in order]) == [alone[place] for place in order]


def test_a_row_past_1024_tokens_runs_in_segments_and_agrees_with_the_reference(tmp_path: Path) -> None:
    tiny = TinyModernBert(45, 20, 4, 2, 26, 97, 2100, span=66)
    write_model(tmp_path, tiny)
    batch = batch_of(seeded_rows([2099, 1100, 5], tiny.vocab), "cls")
    with loaded(reference_plugin, tmp_path, max_tokens=2100) as model:
        wanted = reference_plugin.synapse_embed(model, batch, ignore_progress)
    seen: list[int] = []
    with loaded(plugin, tmp_path, max_tokens=2100) as model:
        found = plugin.synapse_embed(model, batch, lambda done, phase: seen.append(done))
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= 9
    assert np.abs(found - wanted).max() <= END_TO_END["f32"].max_abs_error


@pytest.mark.parametrize("stored", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["xlm_roberta/two_layers", "modernbert/biased"])
def test_checkpoints_of_half_precision_are_read_as_they_are(name: str, stored: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model, stored)
    found = []
    for backend in (reference_plugin, plugin):
        with loaded(backend, tmp_path, max_tokens=recorded.longest) as model:
            found.append(embedded(backend, model, recorded.rows, "mean"))
    assert np.abs(found[1] - found[0]).max() <= END_TO_END["f32"].max_abs_error


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_table_of_static_vectors_agrees_with_the_reference(dtype: DType, tmp_path: Path) -> None:
    write_model(tmp_path, TinyStatic(seed=7, hidden=37, vocab=211, positions=600))
    rows = seeded_rows([1, 5, 33, 130, 531], 211)
    with loaded(reference_plugin, tmp_path, max_tokens=600) as model:
        wanted = [embedded(reference_plugin, model, rows, pooling) for pooling in POOLINGS]
    with loaded(plugin, tmp_path, dtype=dtype, max_tokens=600) as model:
        found = [embedded(plugin, model, rows, pooling) for pooling in POOLINGS]
    assert np.abs(np.array(found) - np.array(wanted)).max() <= END_TO_END[dtype].max_abs_error


@pytest.mark.parametrize(
    ("query", "key"),
    [(np.nan, 0.0), (0.0, np.nan), (np.inf, 1.0), (1e20, -1e20), (1e20, 1e20), (1e16, -1e16), (1e14, -1e14)],
)
def test_scores_that_are_none_or_cannot_be_told_from_hidden_ones_are_no_vector(
    query: float, key: float, tmp_path: Path
) -> None:
    """One feature of one head: everything else in the model is sound, and so is what little the kernel can hold."""
    tiny = TinyBert(seed=5, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=64)
    write_model(tmp_path, tiny)
    tensors = tiny.tensors()
    for part, value in (("query", query), ("key", key)):
        tensors[next(name for name in tensors if name.endswith(f"attention.self.{part}.bias"))][0] = value
    write_safetensors(tmp_path / "model.safetensors", tensors)
    rows, found = seeded_rows([5, 9], 100), []
    with np.errstate(all="ignore"):
        for backend in (reference_plugin, plugin):
            with loaded(backend, tmp_path, max_tokens=64) as model:
                found.append(embedded(backend, model, rows, "mean"))
    if abs(query * key) < 1e29:
        assert np.abs(found[1] - found[0]).max() <= END_TO_END["f32"].max_abs_error
    else:
        assert np.isnan(found[1]).all(axis=1).all()


def digests(model: object, rows: list[np.ndarray], pooling: Pooling = "mean") -> list[str]:
    return [vector_digest(vector) for vector in embedded(plugin, model, rows, pooling)]
