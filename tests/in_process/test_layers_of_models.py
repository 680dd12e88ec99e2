"""What one shape of a model takes of the Neural Engine, read from its config.json before a worker is asked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from synapse_host.errors import SynapseError
from synapse_host.lanes.neural_engine_models import layers_of
from synapse_host.models.registered_model import RegisteredModel


def model(folder: Path, config: Any, family: str = "bert") -> RegisteredModel:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    empty: dict[str, Any] = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    return RegisteredModel(**empty | {"model_id": "m", "config_path": str(path), "family": family})


def test_a_shape_takes_an_executable_for_each_layer_and_a_model_without_layers_one(tmp_path: Path) -> None:
    assert layers_of(model(tmp_path, {"num_hidden_layers": 22})) == 22
    assert layers_of(model(tmp_path, {"num_hidden_layers": 100})) == 100
    assert layers_of(model(tmp_path, {}, family="static")) == 1


@pytest.mark.parametrize(
    ("config", "code", "said"),
    [
        ({}, "artifact_invalid", "does not say how many layers model 'm' has"),
        ([1], "artifact_invalid", "does not say how many layers"),
        ({"num_hidden_layers": True}, "artifact_invalid", "is True, not a positive whole number"),
        ({"num_hidden_layers": 101}, "invalid_request", "'m' has 101 layers, and the Neural Engine has room for 100"),
        ({"num_hidden_layers": 10**9}, "invalid_request", "load it on another backend"),
    ],
)
def test_what_could_never_be_compiled_is_refused_before_a_worker_has_it(
    config: Any, code: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SynapseError, match=said) as refused:
        layers_of(model(tmp_path, config))
    assert refused.value.code == code
