"""The families on MLX's CPU device: close to transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_metal import attention, plugin
from synapse_owned_metal.bucket_ladder import MetalLadder

from synapse_host.hookspecs import DType, PluginError, Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.recorded_encoders import POOLINGS, RECORDED, embedded, recorded_encoder, recorded_pairs
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_models import write_model, write_safetensors
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_static import TinyStatic

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES: tuple[DType, ...] = ("f32", "f16")
CPU = {"allow_cpu": "true"}
#: Half precision is emulated on the CPU: one encoder of each kind.
HALF = ("xlm_roberta/two_layers", "modernbert/short_window")
CASES = [*((name, "f32") for name in RECORDED), *((name, "f16") for name in HALF)]
RERANK = {"operation": "rerank", "pair_separator": str(SEPARATOR)}
#: Largest error of a logit, by activation type.
LOGIT_ERROR = {"f32": 1e-4, "f16": 0.01}


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_tiny_encoders_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded, bound = recorded_encoder(FIXTURES, name), END_TO_END[dtype]
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, settings=CPU) as model:
        found = {pooling: embedded(plugin, model, recorded.rows, pooling).astype(np.float64) for pooling in POOLINGS}
    for pooling, vectors in found.items():
        wanted = recorded.f64[pooling]
        assert np.sum(vectors * wanted, axis=1).min() >= bound.min_cosine
        assert np.abs(vectors - wanted).max() <= bound.max_abs_error


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    near = [row for row in recorded.rows if len(row) <= 130] + [max(recorded.rows, key=len)[:300]]
    rows = [*near, *(row[:-1] for row in near[2:])]
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, settings=CPU) as model:
        alone = [digests(model, [row])[0] for row in rows]
        order = np.random.default_rng(1).permutation(len(rows))
        assert digests(model, [rows[place] for place in order]) == [alone[place] for place in order]


@pytest.mark.parametrize(("name", "dtype"), [*((name, "f32") for name in CROSS_ENCODERS), ("bert/two_layers", "f16")])
def test_logits_of_cross_encoders_agree_and_keep_their_bits(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    order = np.random.default_rng(3).permutation(len(recorded.rows))
    shortest = sorted(range(len(recorded.rows)), key=lambda place: len(recorded.rows[place]))[:12]
    limits: dict[str, Any] = {"dtype": dtype, "max_tokens": recorded.longest, "settings": CPU}
    with loaded_model(plugin, tmp_path, runtime_config=RERANK, **limits) as model:
        found = plugin.synapse_rerank(model, recorded.rows, ignore_progress)
        shuffled = plugin.synapse_rerank(model, [recorded.rows[place] for place in order], ignore_progress)
        alone = [plugin.synapse_rerank(model, [recorded.rows[place]], ignore_progress) for place in shortest]
    assert shuffled.tobytes() == found[order].tobytes()
    assert np.concatenate(alone).tobytes() == found[shortest].tobytes()
    assert np.abs(found - recorded.f64).max() <= LOGIT_ERROR[dtype]


def test_a_long_row_runs_in_segments_reports_each_and_agrees_with_the_reference(tmp_path: Path) -> None:
    tiny = TinyModernBert(45, 20, 4, 2, 26, 97, 2100, span=66)
    write_model(tmp_path, tiny)
    batch = batch_of(seeded_rows([2099, 1100, 5], tiny.vocab), "cls")
    with loaded_model(reference_plugin, tmp_path, max_tokens=2100) as model:
        wanted = reference_plugin.synapse_embed(model, batch, ignore_progress)
    seen: list[int] = []
    with loaded_model(plugin, tmp_path, max_tokens=2100, settings=CPU) as model:
        found = plugin.synapse_embed(model, batch, lambda done, phase: seen.append(done))
    assert seen == list(range(1, 10))
    assert np.abs(found - wanted).max() <= END_TO_END["f32"].max_abs_error


@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_give_the_bits_of_one_graph(tmp_path: Path, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_encoder(FIXTURES, "modernbert/short_window")
    write_model(tmp_path, recorded.model)
    limits: dict[str, Any] = {"dtype": dtype, "max_tokens": recorded.longest, "settings": CPU}
    with loaded_model(plugin, tmp_path, **limits) as model:
        whole = digests(model, recorded.rows)
    monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
    with loaded_model(plugin, tmp_path, **limits) as model:
        assert digests(model, recorded.rows) == whole


@pytest.mark.parametrize("stored", ["f16", "bf16"])
def test_checkpoints_of_half_precision_are_read_as_they_are(stored: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, "modernbert/biased")
    write_model(tmp_path, recorded.model, stored)
    with loaded_model(reference_plugin, tmp_path, max_tokens=recorded.longest) as model:
        wanted = embedded(reference_plugin, model, recorded.rows, "mean")
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, settings=CPU) as model:
        found = embedded(plugin, model, recorded.rows, "mean")
    assert np.abs(found - wanted).max() <= END_TO_END["f32"].max_abs_error


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_table_of_static_vectors_agrees_with_the_reference(dtype: DType, tmp_path: Path) -> None:
    write_model(tmp_path, TinyStatic(seed=7, hidden=37, vocab=211, positions=600))
    rows = seeded_rows([1, 5, 33, 130, 531], 211)
    limits: dict[str, Any] = {"dtype": dtype, "max_tokens": 600, "settings": CPU}
    with loaded_model(reference_plugin, tmp_path, max_tokens=600) as model:
        wanted = [embedded(reference_plugin, model, rows, pooling) for pooling in POOLINGS]
    with loaded_model(plugin, tmp_path, **limits) as model:
        found = [embedded(plugin, model, rows, pooling) for pooling in POOLINGS]
    assert np.abs(np.array(found) - np.array(wanted)).max() <= END_TO_END[dtype].max_abs_error


def test_the_real_minilm_agrees_with_the_reference() -> None:
    rows = seeded_rows([3, 12, 40, 41], 30_000)
    found = []
    for backend, settings in ((reference_plugin, {}), (plugin, CPU)):
        with loaded_model(backend, minilm_directory(), max_tokens=64, settings=settings) as model:
            found.append(embedded(backend, model, rows, "mean").astype(np.float64))
    assert np.sum(found[0] * found[1], axis=1).min() >= END_TO_END["f32"].min_cosine
    assert np.abs(found[0] - found[1]).max() <= END_TO_END["f32"].max_abs_error


def no_mask_of_padding(sight: Any, first: int, last: int, low: int, high: int) -> None:
    """Padded keys count as any other."""


def window_one_wider(distance: Any, sight: Any) -> Any:
    return abs(distance) <= (sight.window or 0) + 1


@pytest.mark.parametrize(
    ("name", "broken", "part"),
    [("bert/two_layers", no_mask_of_padding, "_tile_mask"), ("modernbert/short_window", window_one_wider, "_within")],
)
def test_a_planted_fault_passes_the_bound_by_far(
    name: str, broken: Any, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name if name in RECORDED else next(known for known in RECORDED if "bert" in known)
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    monkeypatch.setattr(attention, part, broken)
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, settings=CPU) as model:
        found = embedded(plugin, model, recorded.rows, "mean").astype(np.float64)
    assert np.abs(found - recorded.f64["mean"]).max() > 10 * END_TO_END["f32"].max_abs_error


def test_a_row_of_any_length_gets_the_rung_that_covers_it() -> None:
    ladder = MetalLadder(8192)
    assert [ladder.bucket(tokens) for tokens in (1, 64, 65, 96, 97, 513, 1025, 8191, 8192)] == [
        64, 64, 96, 96, 128, 768, 1536, 8192, 8192,
    ]  # fmt: skip
    assert len(ladder.buckets()) == 18
    assert MetalLadder(100).buckets() == (64, 96, 100)
    assert MetalLadder(10_000).buckets()[-2:] == (8192, 10_000)
    # Past the ladder a row is filled up by a quarter of its length at most.
    past = MetalLadder(32_768)
    assert [past.bucket(tokens) for tokens in (8193, 10_240, 10_241, 32_768)] == [10_240, 10_240, 12_288, 32_768]
    assert MetalLadder(9000).bucket(8193) == 9000


@pytest.mark.parametrize(("rung", "rows"), [(64, 8), (384, 8), (448, 4), (768, 4), (1024, 2), (3072, 1), (8192, 1)])
def test_rows_of_a_call_keep_the_budget(rung: int, rows: int) -> None:
    assert MetalLadder(8192).rows_per_call(rung) == rows


@pytest.mark.parametrize("tokens", [0, 513])
def test_a_row_the_lane_cannot_hold_is_refused_with_both_numbers(tokens: int) -> None:
    with pytest.raises(ValueError, match=f"row of {tokens} tokens does not fit a lane of 1 to 512"):
        MetalLadder(512).bucket(tokens)


def test_weights_that_half_precision_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    """As infinities they would come out as finite numbers of another text: attention hides what is minus infinity."""
    recorded = recorded_encoder(FIXTURES, "xlm_roberta/two_layers")
    write_model(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    name = next(name for name in tensors if name.endswith("query.bias"))
    tensors[name][0] = -1e5
    write_safetensors(tmp_path / "model.safetensors", tensors)
    limits: dict[str, Any] = {"max_tokens": 64, "settings": CPU}
    with (
        pytest.raises(PluginError, match=f"{name}.*numbers that f16 has no room for") as refused,
        loaded_model(plugin, tmp_path, dtype="f16", **limits),
    ):
        pass
    assert refused.value.code == "artifact_invalid"
    with loaded_model(plugin, tmp_path, **limits) as model:
        assert np.isfinite(embedded(plugin, model, recorded.rows[:1], "mean")).all()


def test_no_variable_of_the_environment_moves_what_mlx_computes() -> None:
    code = (
        "import os\nos.environ.update(MLX_ENABLE_TF32='1', MLX_DISABLE_COMPILE='1')\n"
        "import synapse_owned_metal.runtime\n"
        "assert (os.environ['MLX_ENABLE_TF32'], os.environ.get('MLX_DISABLE_COMPILE')) == ('0', None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def digests(model: object, rows: list[Any], pooling: Pooling = "mean") -> list[str]:
    return [vector_digest(vector) for vector in embedded(plugin, model, rows, pooling)]
