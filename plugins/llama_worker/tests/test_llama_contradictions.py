"""Numbers and types that contradict each other are refused from the header: the engine would end, or never answer."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_llama_worker import loading, plugin
from synapse_llama_worker.contradictions import check_numbers, check_types

from synapse_host.hookspecs import PluginError
from synapse_host.model_files.gguf_header import ArrayOf, GgufTensor
from synapse_host.model_files.gguf_model import GgufModel
from synapse_host.testing.gguf_runs import Reports, loaded_gguf
from synapse_host.testing.models.gguf_file import text, write_gguf
from synapse_host.testing.models.tiny_gguf import TinyDecoder

TINY = TinyDecoder(seed=1, layers=1)

#: Architecture -> key below it -> what ends or hangs the engine, seen without the check.
LETHAL: dict[str, dict[str, list[Any]]] = {
    "llama": {
        "attention.layer_norm_rms_epsilon": [-1.0, float("nan"), float("inf")],
        "rope.scaling.type": ["", "linaer"],
        "expert_count": [2, 2**31],
        "expert_used_count": [1, [1]],
        "attention.head_count": [[0], [3]],
        "attention.head_count_kv": [[0], [3]],
        "nextn_predict_layers": [2],
        "embedding_length_out": [127],
    },
    "qwen2": {"rope.dimension_count": [4], "attention.value_length": [4]},
    "qwen3": {"rope.dimension_count": [0, 4], "attention.key_length": [4]},
    "gemma3": {
        "rope.dimension_count": [0, 3, 32],
        "attention.sliding_window": [2**31],
        "attention.sliding_window_pattern": [1, [0]],
    },
}
CASES = [(name, key, value) for name, keys in LETHAL.items() for key, values in keys.items() for value in values]


@pytest.mark.parametrize(("name", "key", "value"), CASES, ids=lambda part: json.dumps(part))
def test_what_would_end_the_engine_is_refused_before_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str, value: Any
) -> None:
    monkeypatch.setattr(loading, "open_library", lambda: pytest.fail("the engine was opened"))
    tiny = replace(TINY, architecture=name)
    write_gguf(tmp_path / "m.gguf", tiny.values() | {f"{name}.{key}": value}, tiny.tensors())
    with (
        pytest.raises(PluginError, match=rf"{name}\.(attention\.)?[a-z_.]+ is .+; use the file published") as refusal,
        loaded_gguf(plugin, tmp_path / "m.gguf", name, "generate", 32),
    ):
        pass
    assert refusal.value.code == "artifact_invalid"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}),
        ("llama", {"attention.head_count": [4], "attention.head_count_kv": [2]}),
        ("llama", {"expert_count": 0, "nextn_predict_layers": 0}),
        ("gemma3", {"attention.sliding_window_pattern": 2}),
        ("gemma3", {"attention.sliding_window_pattern": [1]}),
        ("gemma3", {"rope.dimension_count": 4}),
    ],
)
def test_what_is_no_contradiction_is_served(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    tiny = replace(TINY, architecture=name)
    values = tiny.values() | {f"{name}.{key}": value for key, value in changes.items()}
    write_gguf(tmp_path / "m.gguf", values, tiny.tensors())
    with loaded_gguf(plugin, tmp_path / "m.gguf", name, "generate", 32) as model:
        made = plugin.synapse_generate(model, np.array([5], np.int32), {"max_tokens": 2}, Reports())
    assert made.n_prompt == 1


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("blk.0.attn_q.weight", 9, "has type 9, and must have floats"),
        ("blk.0.attn_q.weight", 15, "has type 15, and must have floats"),
        ("token_embd.weight", 26, "has type 26, and must have floats"),
        ("output_norm.weight", 1, "has type 1, and must have 32-bit floats"),
        ("token_types.weight", 1, "has type 1, and must have 32-bit floats"),
        ("blk.0.attn_q.bias", 30, "has type 30, and must have 32-bit floats"),
    ],
)
def test_types_the_engine_has_no_operator_for_are_refused(name: str, kind: int, said: str) -> None:
    dims = (256,) if name == "output_norm.weight" else (256, 1)
    with pytest.raises(ValueError, match=rf"tensor '{re.escape(name)}' {said}.*; use the file published"):
        check_types({name: GgufTensor(kind, dims, 0, 64)})


def test_matrices_may_be_of_any_quantisation_and_a_vector_is_whole() -> None:
    served = {f"blk.{kind}.attn_q.weight": GgufTensor(kind, (256, 1), 0, 64) for kind in (0, 1, 2, 8, 12, 20, 30, 39)}
    check_types({**served, "output_norm.weight": GgufTensor(0, (256,), 0, 1024)})


def test_a_file_of_such_a_type_is_refused_before_the_engine_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "open_library", lambda: pytest.fail("the engine was opened"))
    file = tmp_path / "m.gguf"
    write_gguf(file, TINY.values(), TINY.tensors())
    entry = text("blk.0.attn_q.weight") + struct.pack("<IQQ", 2, 32, 32)
    data = file.read_bytes()
    file.write_bytes(data.replace(entry + struct.pack("<I", 0), entry + struct.pack("<I", 26)))
    assert file.read_bytes() != data
    with (
        pytest.raises(PluginError, match="has type 26") as refusal,
        loaded_gguf(plugin, file, "llama", "generate", 32),
    ):
        pass
    assert refusal.value.code == "artifact_invalid"


@pytest.mark.parametrize(
    ("experts", "used", "groups", "groups_used", "served"),
    [(8, 2, 0, 0, True), (8, 2, 4, 2, True), (8, 2, 3, 1, False), (8, 2, 4, 4, False), (8, 9, 0, 0, False)],
)
def test_experts_and_their_groups(experts: int, used: int, groups: int, groups_used: int, served: bool) -> None:
    model = GgufModel("llama", 64, 32, 2, 10, frozenset())
    values = {
        "llama.expert_count": experts,
        "llama.expert_used_count": ArrayOf(2, numbers=(1, used)),
        "llama.expert_group_count": groups,
        "llama.expert_group_used_count": groups_used,
    }
    if served:
        return check_numbers(values, model)
    with pytest.raises(ValueError, match=r"llama\.expert_"):
        check_numbers(values, model)
    return None
