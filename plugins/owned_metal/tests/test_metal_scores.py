"""Scores past what a kernel keeps apart from masked ones: such a row is no number, and no number of another text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_owned_metal import decode_plugin, mlx_ops, plugin
from synapse_owned_metal.key_value_cache import KeyValueCache
from synapse_owned_metal.mlx_ops import MlxOps, RopeTables
from synapse_owned_metal.mlx_types import MX_DTYPES
from synapse_owned_metal.runtime import mx
from synapse_owned_metal.score_bound import longest

from synapse_host.hookspecs import DType, PluginError
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.shape_policy import Regime
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.recorded_encoders import embedded, recorded_encoder
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_models import write_model, write_safetensors
from synapse_host.testing.models.tiny_qwen3 import write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
CPU = {"allow_cpu": "true"}
WIDTHS = (32, 64)
#: Two rows of 24 positions; the second is all of it, of the first a few positions are text.
COUNTS = (3, 24)
INFINITE = float("inf")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("regime", ["full", "band"])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [(INFINITE, 1.0), (1.0, -INFINITE), (float("nan"), 1.0), (1.0, float("nan")), (256.0, -1024.0)],
    ids=["query infinite", "key infinite", "query no number", "key no number", "score past f16"],
)
def test_a_head_whose_scores_f16_cannot_tell_from_masked_ones_is_no_number(
    queries: float, keys: float, regime: Regime, width: int
) -> None:
    q, k, v = (np.ones((2, 2, 24, width), np.float32) for _ in range(3))
    q[0, 1, 2], k[0, 1, :3] = queries, keys
    found = attended(q, k, v, "f16", regime)
    assert np.isnan(found[0, 1]).all()
    assert found[0, 0, : COUNTS[0]] == pytest.approx(1.0, abs=0.002)
    assert found[1] == pytest.approx(1.0, abs=0.002)


@pytest.mark.parametrize(("dtype", "size"), [("f16", 60.0), ("f32", 2000.0)])
def test_scores_far_below_others_are_kept_apart_from_masked_ones(dtype: DType, size: float) -> None:
    """The keys of the text score as low as the bound allows; values behind the mask would show."""
    q, k, v = (np.ones((1, 1, 24, 64), np.float32) for _ in range(3))
    q[:], k[:, :, :3], v[:, :, 3:] = size, -size, 7.0
    assert (attended(q, k, v, dtype, "full", counts=(3,)) == 1.0).all()


def test_float32_scores_too_large_to_be_told_apart_are_no_number() -> None:
    q, k, v = (np.full((1, 1, 24, 64), 1e20, np.float32) for _ in range(3))
    assert np.isnan(attended(q, -k, v, "f32", "full", counts=(3,))).all()


def test_a_shared_key_spoils_the_heads_that_read_it_and_no_other() -> None:
    q, k, v = np.ones((1, 4, 24, 32), np.float32), *(np.ones((1, 2, 24, 32), np.float32) for _ in range(2))
    k[0, 1, 5] = -INFINITE
    found = attended(q, k, v, "f16", "full", counts=(24,))
    assert np.isnan(found[0, 2:]).all()
    assert (found[0, :2] == 1.0).all()


@pytest.mark.parametrize(("later", "lost"), [(1024.0, True), (1.0, False)])
def test_a_key_read_long_ago_is_remembered(later: float, lost: bool) -> None:
    ops, cache = new_ops("f16"), KeyValueCache()
    first, next_one = np.ones((1, 1, 4, 32), np.float32), np.ones((1, 1, 1, 32), np.float32)
    read(ops, cache, first, first * -1024.0, start=0)
    found = read(ops, cache, next_one * later, next_one, start=4)
    assert np.isnan(found).all() == lost


def test_keys_of_a_cache_are_not_read_again_for_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(mlx_ops, "longest", lambda x: seen.append(tuple(x.shape)) or longest(x))
    ops, cache = new_ops("f16"), KeyValueCache()
    for start, length in ((0, 4), (4, 1)):
        new = np.ones((1, 1, length, 32), np.float32)
        read(ops, cache, new, new, start=start)
    assert seen == [(1, 1, 4, 32), (1, 1, 1, 32)]


def test_a_sound_model_whose_scores_overflow_f16_is_refused_there_and_right_in_the_reference(tmp_path: Path) -> None:
    """Every weight fits f16: what is made of them does not."""
    recorded = recorded_encoder(FIXTURES, "xlm_roberta/two_layers")
    write_model(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    for part, size in (("query", 6e4), ("key", -6e4)):
        bias = next(each for each in tensors if each.endswith(f"layer.0.attention.self.{part}.bias"))
        tensors[bias][:] = size
    write_safetensors(tmp_path / "model.safetensors", tensors)
    rows, limits = recorded.rows[:3], {"max_tokens": recorded.longest}
    with loaded_model(reference_plugin, tmp_path, **limits) as model:
        assert np.isfinite(embedded(reference_plugin, model, rows, "mean")).all()
    with loaded_model(plugin, tmp_path, dtype="f16", settings=CPU, **limits) as model:
        assert np.isnan(embedded(plugin, model, rows, "mean")).all(axis=1).all()


def test_a_text_whose_keys_overflow_f16_ends_in_a_refusal(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    for name in tensors:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] *= 100.0
    write_safetensors(tmp_path / "model.safetensors", tensors)
    limits: dict[str, Any] = {"max_tokens": 300, "settings": CPU, "runtime_config": {"operation": "generate"}}
    with (
        loaded_model(decode_plugin, tmp_path, dtype="f16", **limits) as model,
        pytest.raises(PluginError, match="the logits after token id 8 are NaN"),
    ):
        decode_plugin.synapse_generate(model, np.array([4, 5, 8], np.int32), {"max_tokens": 3}, ignore_progress)


def new_ops(dtype: DType, regime: Regime = "full") -> MlxOps:
    mx.set_default_device(mx.cpu)
    nothing: Any = None
    return MlxOps(nothing, RopeTables(64), dtype=dtype, regime=regime)


def attended(
    q: npt.NDArray[np.float32],
    k: npt.NDArray[np.float32],
    v: npt.NDArray[np.float32],
    dtype: DType,
    regime: Regime,
    counts: tuple[int, ...] = COUNTS,
) -> npt.NDArray[np.float32]:
    ops = new_ops(dtype, regime)
    given = [mx.array(each).astype(MX_DTYPES[dtype]) for each in (q, k, v)]
    batch = Batch(mx.zeros((len(counts), 24), mx.int32), mx.array(counts, dtype=mx.int32))
    context = ops.attention(*given, batch, scale=q.shape[-1] ** -0.5, window=8 if regime == "band" else None)
    return np.array(context.astype(mx.float32))


def read(ops: MlxOps, cache: KeyValueCache, q: Any, k: Any, *, start: int) -> npt.NDArray[np.float32]:
    queries, keys, values = (mx.array(each).astype(mx.float16) for each in (q, k, np.ones_like(k)))
    length = q.shape[2]
    batch = Batch(mx.zeros((1, length), mx.int32), mx.array([length], dtype=mx.int32), start=start)
    keys, values = ops.kv_append(cache, 0, keys, values, batch)
    context = ops.attention(queries, keys, values, batch, scale=32**-0.5, causal=True)
    return np.array(context.astype(mx.float32))
