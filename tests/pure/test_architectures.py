"""config.json: the supported read, everything else refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.errors import InvalidRequest
from synapse_host.model_files.architectures import FAMILY_OF_MODEL_TYPE, Architecture, read_architecture

MINILM: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-12,
}
SUPPORTED = sorted(FAMILY_OF_MODEL_TYPE)
#: bge-m3: two rows of its position table hold no token.
BGE_M3 = MINILM | {
    "model_type": "xlm-roberta",
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "vocab_size": 250002,
    "max_position_embeddings": 8194,
    "pad_token_id": 1,
}


def test_a_bert_config_is_read() -> None:
    assert read_architecture(MINILM) == Architecture("bert", "bert", 384, 6, 30522, 512)


def test_the_positions_of_an_xlm_roberta_begin_after_that_of_padding() -> None:
    assert read_architecture(BGE_M3) == Architecture("xlm-roberta", "xlm-roberta", 1024, 24, 250002, 8192)
    without = {name: value for name, value in BGE_M3.items() if name != "pad_token_id"}
    assert read_architecture(without).max_positions == 8192
    assert read_architecture(BGE_M3 | {"pad_token_id": 4}).max_positions == 8189
    assert read_architecture(BGE_M3 | {"pad_token_id": 8192}).max_positions == 1


def test_a_table_of_tokens_needs_no_layers() -> None:
    sizes = {"vocab_size": 30522, "hidden_size": 256, "max_position_embeddings": 4096}
    assert read_architecture({"model_type": "static", **sizes}) == Architecture("static", "static", 256, 0, 30522, 4096)
    for field in sizes:
        with pytest.raises(InvalidRequest, match=field):
            read_architecture({"model_type": "static", **sizes, field: None})


@pytest.mark.parametrize("pad", [-1, 8193, None, 1.0, "1", True])
def test_a_padding_id_that_is_no_row_of_the_table_is_refused_by_value(pad: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"must be an integer from 0 to 8192") as caught:
        read_architecture(BGE_M3 | {"pad_token_id": pad})
    assert f"pad_token_id {pad!r}" in caught.value.message
    assert caught.value.details == {"file": "config.json", "field": "pad_token_id"}


@pytest.mark.parametrize("model_type", ["gpt2", "BERT", "", 7, ["bert"], {"bert": 1}])
def test_another_architecture_is_named_with_those_supported(model_type: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_architecture(MINILM | {"model_type": model_type})
    assert f"model_type {model_type!r}" in caught.value.message
    assert f"load a model of type {', '.join(SUPPORTED)}" in caught.value.message
    assert caught.value.details == {"architecture": model_type, "supported": SUPPORTED}


def test_a_config_without_a_model_type_is_refused_with_what_it_has() -> None:
    with pytest.raises(InvalidRequest, match=r"no model_type \(architectures: \['GPT2Model'\]\)") as caught:
        read_architecture({"architectures": ["GPT2Model"]})
    assert caught.value.details == {"architecture": None, "supported": SUPPORTED}


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
