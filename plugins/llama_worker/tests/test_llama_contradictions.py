"""Numbers that contradict each other are refused from the header: the engine would end its process, or never answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_llama_worker import loading, plugin
from synapse_llama_worker.contradictions import check_numbers

from synapse_host.hookspecs import PluginError
from synapse_host.model_files.gguf_header import ArrayOf
from synapse_host.model_files.gguf_model import GgufModel
from synapse_host.testing.gguf_file import write_gguf
from synapse_host.testing.gguf_runs import Reports, loaded_gguf
from synapse_host.testing.tiny_gguf import TinyDecoder

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
