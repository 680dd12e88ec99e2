"""config.json: the supported read, everything else refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.errors import InvalidRequest
from synapse_host.model_files.architectures import Architecture, read_architecture

MINILM: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}


def test_a_bert_config_is_read() -> None:
    assert read_architecture(MINILM) == Architecture("bert", "bert", 384, 6, 30522, 512)


@pytest.mark.parametrize("model_type", ["modernbert", "qwen3", "BERT", "", 7, ["bert"], {"bert": 1}])
def test_another_architecture_is_named_with_those_supported(model_type: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_architecture(MINILM | {"model_type": model_type})
    assert f"model_type {model_type!r}" in caught.value.message
    assert "load a model of type bert" in caught.value.message
    assert caught.value.details == {"architecture": model_type, "supported": ["bert"]}


def test_a_config_without_a_model_type_is_refused_with_what_it_has() -> None:
    with pytest.raises(InvalidRequest, match=r"no model_type \(architectures: \['GPT2Model'\]\)") as caught:
        read_architecture({"architectures": ["GPT2Model"]})
    assert caught.value.details == {"architecture": None, "supported": ["bert"]}


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, -1, 384.0, "384", True])
def test_a_size_that_is_no_positive_integer_is_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_architecture(MINILM | {field: value})
    assert f"{field} {value!r}" in caught.value.message
    assert caught.value.details == {"file": "config.json", "field": field}


@pytest.mark.parametrize("field", [name for name in MINILM if name not in ("architectures", "layer_norm_eps")])
def test_a_missing_field_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest):
        read_architecture({name: value for name, value in MINILM.items() if name != field})
