"""Qwen3 generating on the CPU backend: in float32 token for token as transformers does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_cpu import graph_backend, plugin
from synapse_owned_cpu.openvino_ops import OpenVinoOps
from synapse_owned_cpu.runtime import core, opset, ov

from synapse_host.hookspecs import DType, Generation, PluginError
from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine import greedy
from synapse_host.testing.engine_runs import ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_qwen3 import RecordedQwen3, recorded_qwen3
from synapse_host.testing.models.tiny_models import write_safetensors
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES = plugin.synapse_describe().dtypes


def tiny_graph() -> Any:
    x = opset.parameter([1], ov.Type.f32)
    return ov.Model([opset.result(opset.relu(x))], [x], "tiny")


@contextmanager
def decoder(directory: Path, recorded: RecordedQwen3, dtype: DType, **config: Any) -> Iterator[Any]:
    write_qwen3(directory, recorded.model, **{"eos_token_id": None, **config})
    runtime = {"operation": "generate"}
    with loaded_model(plugin, directory, dtype=dtype, max_tokens=300, runtime_config=runtime) as model:
        yield model


def generated(model: Any, prompt: Any, most: int = 64) -> Generation:
    return plugin.synapse_generate(model, prompt, {"max_tokens": most}, ignore_progress)


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_every_token_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    with decoder(tmp_path, recorded, "f32") as model:
        made = [list(generated(model, prompt).token_ids) for prompt in recorded.prompts]
    assert made == recorded.generated.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_requests_do_not_see_each_other(dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "fours")
    with decoder(tmp_path, recorded, dtype) as model:
        alone = [generated(model, prompt, 12) for prompt in recorded.prompts]
        assert [generated(model, prompt, 12) for prompt in recorded.prompts[::-1]] == alone[::-1]


def test_pieces_of_a_prompt_change_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    monkeypatch.setattr(greedy, "PIECE", 7)
    with decoder(tmp_path, recorded, "f32") as model:
        made = [list(generated(model, prompt).token_ids) for prompt in recorded.prompts]
    assert made == recorded.generated.tolist()


def test_a_stop_token_ends_the_text(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    wanted = recorded.generated[1].tolist()
    cut = next(place for place in range(4, 64) if wanted[place] not in wanted[:place])
    with decoder(tmp_path, recorded, "f32", eos_token_id=[wanted[cut]]) as model:
        made = generated(model, recorded.prompts[1])
    assert (list(made.token_ids), made.finish_reason) == (wanted[:cut], "stop")


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_are_none_are_refused_and_not_taken_for_a_token(dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    tensors = recorded.model.tensors()
    tensors["model.embed_tokens.weight"][5] = np.nan
    write_safetensors(tmp_path / "model.safetensors", tensors)
    runtime = {"operation": "generate"}
    with (
        loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=300, runtime_config=runtime) as model,
        pytest.raises(PluginError, match="the logits after token id 8 are NaN"),
    ):
        generated(model, np.array([4, 5, 8], np.int32), 3)


@pytest.mark.skipif("bf16" not in DTYPES, reason="this processor does not compute in bf16")
def test_bfloat16_begins_as_float32_does(tmp_path: Path) -> None:
    """Rounding turns near ties, and what follows a turned token is another text: most texts agree at first."""
    recorded = recorded_qwen3(FIXTURES, "fours")
    with decoder(tmp_path, recorded, "bf16") as model:
        made = np.array([generated(model, prompt, 4).token_ids for prompt in recorded.prompts])
    assert (made == recorded.generated[:, :4]).mean() >= 0.9


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_and_values_are_kept_in_the_type_of_the_lane(dtype: DType) -> None:
    """The runtime may keep them in 8 bits unless it is told the type."""
    compiled = core().compile_model(tiny_graph(), "CPU", graph_backend.decoding_settings(dtype, 1))
    assert compiled.get_property("KV_CACHE_PRECISION").get_type_name() == dtype


def test_positions_that_start_again_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    rope = OpenVinoOps.rope
    monkeypatch.setattr(OpenVinoOps, "rope", lambda ops, h, table, at: rope(ops, h, table, Batch(at.ids, at.counts)))
    with decoder(tmp_path, recorded, "f32") as model:
        made = [list(generated(model, prompt, 20).token_ids) for prompt in recorded.prompts]
    assert made != recorded.generated[:, :20].tolist()


def test_a_prompt_of_every_length_to_a_bucket_edge_agrees_with_reading_it_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    prompts = seeded_rows([15, 16, 17, 127, 128, 129, 255, 256, 257], recorded.model.vocab)
    with decoder(tmp_path, recorded, "f32") as model:
        whole = [generated(model, prompt, 3).token_ids for prompt in prompts]
        monkeypatch.setattr(greedy, "PIECE", 100)
        assert [generated(model, prompt, 3).token_ids for prompt in prompts] == whole
