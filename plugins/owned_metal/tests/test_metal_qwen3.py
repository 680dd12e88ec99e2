"""Qwen3 on MLX's CPU device: vectors, scores and generated tokens as transformers makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_metal import attention, decode_plugin, key_value_cache, plugin
from synapse_owned_metal.mlx_ops import MlxOps

from synapse_host.hookspecs import DType, Generation, PluginError
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine import greedy, reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.recorded_qwen3 import RecordedQwen3, recorded_qwen3
from synapse_host.testing.models.tiny_models import write_safetensors
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3, write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES: tuple[DType, ...] = ("f32", "f16")
CPU = {"allow_cpu": "true"}
#: Smallest cosine and largest error of a component.
FLOORS = {"f32": (0.999999, 2e-6), "f16": (0.99999, 0.005)}
SCORE_ERROR = {"f32": 1e-5, "f16": 0.005}


def digests(model: Any, rows: list[Any]) -> list[str]:
    return [vector_digest(vector) for vector in plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)]


@pytest.mark.parametrize(("name", "dtype"), [*((name, "f32") for name in sorted(TINY_QWEN3S)), ("pairs", "f16")])
def test_vectors_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, settings=CPU) as model:
        found = plugin.synapse_embed(model, batch_of(recorded.rows, "last"), ignore_progress).astype(np.float64)
    wanted = recorded.vectors["f64"]
    assert np.sum(found * wanted, axis=1).min() >= FLOORS[dtype][0]
    assert np.abs(found - wanted).max() <= FLOORS[dtype][1]


def test_a_row_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    lengths = [31, 32, 33, 63, 64, 65, 96, 97, 127, 128, 129, 255, 256, 257, 511, 512, 513]
    short = [row for row in recorded.rows if len(row) <= 128][:10]
    rows = [*seeded_rows(lengths, recorded.model.vocab), *short, *(row[:-1] for row in short if len(row) > 2)]
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, settings=CPU) as model:
        alone = [digests(model, [row])[0] for row in rows]
        order = np.random.default_rng(1).permutation(len(rows))
        assert digests(model, [rows[place] for place in order]) == [alone[place] for place in order]
        assert set(digests(model, [rows[1]] * 7)) == {alone[1]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_agree_with_transformers(dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    logits = recorded.logits["f64"]
    write_qwen3(tmp_path, recorded.model, readout_ids=list(recorded.readout))
    limits: dict[str, Any] = {"dtype": dtype, "max_tokens": recorded.longest, "settings": CPU}
    with loaded_model(plugin, tmp_path, runtime_config={"operation": "rerank"}, **limits) as model:
        found = plugin.synapse_rerank(model, recorded.rows, ignore_progress)
    assert np.abs(found - 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))).max() <= SCORE_ERROR[dtype]


def test_a_row_of_3000_tokens_runs_in_tiles_and_agrees_with_the_reference(tmp_path: Path) -> None:
    tiny = TinyQwen3(42, 16, 2, 2, 1, 10, 24, 97, 8192, tied=True)
    write_qwen3(tmp_path, tiny)
    rows = seeded_rows([3000], 97)
    with loaded_model(reference_plugin, tmp_path, max_tokens=3072) as model:
        wanted = reference_plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
    seen: list[int] = []
    with loaded_model(plugin, tmp_path, max_tokens=3072, settings=CPU) as model:
        found = plugin.synapse_embed(model, batch_of(rows, "last"), lambda done, phase: seen.append(done))
    assert attention.tile_length(3072) < 3000
    assert seen == [1, 2]
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= FLOORS["f32"][0]


# --- generation ----------------------------------------------------------------------------------------------


@contextmanager
def decoder(directory: Path, recorded: RecordedQwen3, dtype: DType = "f32", **config: Any) -> Iterator[Any]:
    write_qwen3(directory, recorded.model, **{"eos_token_id": None, **config})
    limits: dict[str, Any] = {"dtype": dtype, "max_tokens": 300, "settings": CPU}
    with loaded_model(decode_plugin, directory, runtime_config={"operation": "generate"}, **limits) as model:
        yield model


def generated(model: Any, prompt: Any, most: int = 64) -> Generation:
    return decode_plugin.synapse_generate(model, prompt, {"max_tokens": most}, ignore_progress)


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_every_token_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    with decoder(tmp_path, recorded) as model:
        made = [list(generated(model, prompt).token_ids) for prompt in recorded.prompts]
    assert recorded.generated.shape == (len(recorded.prompts), 64)
    assert made == recorded.generated.tolist()


def test_the_recordings_hold_twenty_prompts() -> None:
    assert sum(len(recorded_qwen3(FIXTURES, name).prompts) for name in TINY_QWEN3S) >= 20


@pytest.mark.parametrize("step", [1, 5, 64])
def test_steps_of_the_cache_change_no_token(step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    monkeypatch.setattr(key_value_cache, "STEP", step)
    with decoder(tmp_path, recorded) as model:
        made = [list(generated(model, prompt, 20).token_ids) for prompt in recorded.prompts[:4]]
    assert made == recorded.generated[:4, :20].tolist()


def test_pieces_of_a_prompt_change_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    monkeypatch.setattr(greedy, "PIECE", 7)
    with decoder(tmp_path, recorded) as model:
        made = [list(generated(model, prompt, 20).token_ids) for prompt in recorded.prompts]
    assert made == recorded.generated[:, :20].tolist()


def test_a_text_that_crosses_a_step_goes_on_as_the_reference(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    prompt = seeded_rows([250], recorded.model.vocab)[0]
    with decoder(tmp_path, recorded) as model:
        made = generated(model, prompt, 16)
    limits: dict[str, Any] = {"max_tokens": 300, "runtime_config": {"operation": "generate"}}
    with loaded_model(reference_plugin, tmp_path, **limits) as model:
        wanted = reference_plugin.synapse_generate(model, prompt, {"max_tokens": 16}, ignore_progress)
    assert made == wanted


def test_half_precision_begins_as_float32_does(tmp_path: Path) -> None:
    """Rounding turns near ties, and what follows a turned token is another text: most texts agree at first."""
    recorded = recorded_qwen3(FIXTURES, "fours")
    with decoder(tmp_path, recorded, "f16") as model:
        made = np.array([generated(model, prompt, 4).token_ids for prompt in recorded.prompts])
    assert (made == recorded.generated[:, :4]).mean() >= 0.9


def test_requests_do_not_see_each_other(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "fours")
    with decoder(tmp_path, recorded) as model:
        alone = [generated(model, prompt, 12) for prompt in recorded.prompts]
        assert [generated(model, prompt, 12) for prompt in recorded.prompts[::-1]] == alone[::-1]


def test_numbers_that_are_none_are_refused_and_not_taken_for_a_token(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    tensors["model.embed_tokens.weight"][5] = np.nan
    write_safetensors(tmp_path / "model.safetensors", tensors)
    limits: dict[str, Any] = {"max_tokens": 300, "settings": CPU, "runtime_config": {"operation": "generate"}}
    with (
        loaded_model(decode_plugin, tmp_path, **limits) as model,
        pytest.raises(PluginError, match="the logits after token id 8 are NaN"),
    ):
        generated(model, np.array([4, 5, 8], np.int32), 3)


def test_logits_past_half_precision_are_refused_and_not_taken_for_a_token(tmp_path: Path) -> None:
    """Two infinities are no tie: which of them is larger is lost."""
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    name = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    tensors[name] = np.clip(tensors[name] * 3e4, -6e4, 6e4)
    write_safetensors(tmp_path / "model.safetensors", tensors)
    limits: dict[str, Any] = {"max_tokens": 300, "settings": CPU, "runtime_config": {"operation": "generate"}}
    with (
        loaded_model(decode_plugin, tmp_path, dtype="f16", **limits) as model,
        pytest.raises(PluginError, match="the logits after token id 8 are NaN"),
    ):
        generated(model, np.array([4, 5, 8], np.int32), 3)


def test_positions_that_start_again_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    rope = MlxOps.rope
    monkeypatch.setattr(MlxOps, "rope", lambda ops, h, table, at: rope(ops, h, table, Batch(at.ids, at.counts)))
    with decoder(tmp_path, recorded) as model:
        made = [list(generated(model, prompt, 20).token_ids) for prompt in recorded.prompts]
    assert made != recorded.generated[:, :20].tolist()
