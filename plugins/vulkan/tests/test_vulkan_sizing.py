"""A model too large for the device is refused by the shapes of its tensors, before one of them is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from synapse_vulkan import backend, plugin, sizing, weight_memory
from synapse_vulkan.opening import open_runtime

from synapse_host.hookspecs import DType, PluginError
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.engine_runs import loaded_model
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3
from synapse_host.testing.models.tiny_static import TinyStatic

pytestmark = pytest.mark.usefixtures("vulkan_device")
loaded = partial(loaded_model, plugin, max_tokens=64, settings={"allow_software_device": "true"})
BERT = TinyBert(seed=5, hidden=36, layers=2, heads=3, intermediate=70, vocab=121, positions=64)
RERANK = {"operation": "rerank"}
MODELS: Mapping[str, tuple[Any, DType, Mapping[str, str]]] = {
    "bert": (BERT, "f32", {}),
    "bert in f16": (BERT, "f16", {}),
    "xlm-roberta": (TINY_XLM_ROBERTAS["pad_four"], "f32", {}),
    "modernbert": (TINY_MODERNBERTS["short_window"], "f32", {}),
    "a cross-encoder": (CROSS_ENCODERS[min(CROSS_ENCODERS)], "f32", RERANK | {"pair_separator": "3"}),
    "qwen3 by two tokens": (TINY_QWEN3S["one_key_head"], "f32", RERANK),
    "static": (TinyStatic(7, 34, 121, 64), "f32", {}),
}


def write(directory: Path, name: str) -> tuple[DType, Mapping[str, str]]:
    model, dtype, pairs = MODELS[name]
    if name.startswith("qwen3"):
        write_qwen3(directory, model, readout_ids=[5, 9])
    else:
        write_model(directory, model)
    return dtype, pairs


class UnrunReplay:
    """Stands for commands that nobody runs: a software device takes seconds to compile them."""

    dispatches = 0
    stale = False

    def __init__(self, *given: object) -> None: ...
    def run(self, done: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("name", MODELS)
def test_the_size_is_what_the_load_then_takes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks so small that most tensors begin one.
    monkeypatch.setattr(weight_memory, "BLOCK_BYTES", 2048)
    monkeypatch.setattr(backend, "Replay", UnrunReplay)
    found: list[int] = []
    count = sizing.weight_bytes

    def noted(*given: Any) -> int:
        found.append(count(*given))
        return found[-1]

    monkeypatch.setattr(sizing, "weight_bytes", noted)
    dtype, pairs = write(tmp_path, name)
    with loaded(tmp_path, dtype=dtype, runtime_config=pairs) as model:
        assert found == [sum(block.size for block in model._backend.weights._blocks)]


@pytest.mark.parametrize(("dtype", "hint"), [("f32", r"in f32 \(about half in f16\) and"), ("f16", "in f16 and")])
def test_a_model_too_large_is_refused_with_both_sizes_before_a_tensor_is_read(
    dtype: DType, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*given: object) -> None:
        raise AssertionError("the tensors were read")

    write(tmp_path, "bert")
    device = open_runtime().device
    memories, room = device._memories, 5 << 20
    heaps = tuple(taken + room for taken in device._taken)
    monkeypatch.setattr(device, "_memories", replace(memories, heaps=heaps))
    monkeypatch.setattr(CheckpointWeights, "open", read)
    before = device.allocated
    wanted = rf"weights take 32 MB .*{hint}.* \d+ MB left of {device.facts.memory_mb} MB"
    with pytest.raises(PluginError, match=wanted) as refused, loaded(tmp_path, dtype=dtype):
        pass
    assert refused.value.code == "oom"
    assert device.allocated == before


def test_a_tensor_that_is_missing_is_named_before_any_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "bert")
    config = tmp_path / "config.json"
    config.write_text(config.read_text(encoding="utf-8").replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    monkeypatch.setattr(CheckpointWeights, "open", lambda *given: pytest.fail("the tensors were read"))
    with pytest.raises(PluginError, match=r"the checkpoint has no tensor .*layer\.2\.") as refused, loaded(tmp_path):
        pass
    assert refused.value.code == "artifact_invalid"
