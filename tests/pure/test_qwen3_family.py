"""What a Qwen3 config.json may say, and that the family asks for exactly the tensors of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synapse_host.families import qwen3
from synapse_host.families.qwen3 import Qwen3Config
from synapse_host.ops.null_ops import NullOps
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S

TINY = TINY_QWEN3S["fours"]


def read(**changes: Any) -> Qwen3Config:
    config = {key: value for key, value in (TINY.config() | changes).items() if value != "left out"}
    return Qwen3Config.from_config(config, pooling="last", normalize=True)


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not 'silu'"),
    ({"attention_bias": True}, "attention_bias True"),
    ({"use_sliding_window": True}, "use_sliding_window True"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types name ['sliding_attention']"),
    ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 8"),
    ({"head_dim": 7}, "head_dim 7 is odd"),
    ({"head_dim": "22"}, "head_dim '22' is not a whole number"),
    ({"hidden_size": "left out"}, "no 'hidden_size'"),
    ({"num_hidden_layers": True}, "num_hidden_layers True"),
    ({"rms_norm_eps": 0}, "rms_norm_eps 0"),
    ({"rms_norm_eps": True}, "rms_norm_eps True"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings 'no'"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type 'yarn'"),
    ({"rope_parameters": "left out", "rope_theta": 1e6, "rope_scaling": {"type": "linear"}}, "rope_type 'linear'"),
    ({"readout_ids": [1, 2, 3]}, "readout_ids [1, 2, 3] are not two token ids"),
    ({"readout_ids": [1, -1]}, "readout_ids [1, -1]"),
    ({"readout_ids": "12"}, "readout_ids '12'"),
    ({"rope_parameters": [1e6]}, "is not an object"),
    ({"rope_parameters": "left out"}, "no 'rope_theta'"),
    ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta nan"),
]


@pytest.mark.parametrize(("changes", "said"), REFUSALS, ids=[said for _, said in REFUSALS])
def test_a_config_that_is_not_computed_is_refused_by_field(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        read(**changes)
    assert said in str(refused.value)


def test_fields_left_out_have_the_values_of_transformers() -> None:
    left_out = ("head_dim", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "hidden_act")
    config = read(**dict.fromkeys(left_out, "left out"))
    assert (config.head_dim, config.kv_heads, config.eps, config.tied) == (128, 8, 1e-6, False)


def test_the_rope_base_is_read_from_both_places() -> None:
    assert read().theta == 1e6
    assert read(rope_parameters="left out", rope_theta=10_000, rope_scaling=None).theta == 1e4
    assert read(rope_parameters={"rope_type": "default"}, rope_theta=500.5).theta == 500.5


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_the_family_asks_for_every_tensor_once_and_looks_into_no_handle(name: str) -> None:
    tiny = TINY_QWEN3S[name]
    shapes = {key.removeprefix("model."): tensor.shape for key, tensor in tiny.tensors().items()}
    ops = NullOps(shapes)
    config = Qwen3Config.from_config(tiny.config(), pooling="last", normalize=True)
    batch = ops.batch()
    x = qwen3.stem(ops, config, batch)
    for i in range(config.layers):
        x = qwen3.block(ops, config, i, x, batch)
    assert ops.shape_of(ops.result(qwen3.head(ops, config, x, batch))) == ("B", tiny.hidden)
    assert ops.shape_of(qwen3.score(ops, replace(config, readout=(5, 9)), x, batch)) == ("B", 1, 2)
    assert ops.shape_of(qwen3.next_token(ops, config, x, batch)) == ("B", 1)
    assert ops.weights == shapes


def test_the_readout_is_that_of_the_published_vocabulary_unless_named() -> None:
    assert read().readout == (9693, 2152)
    assert read(readout_ids=[7, 3]).readout == (7, 3)


def test_a_readout_outside_the_vocabulary_is_refused() -> None:
    ops = NullOps()
    with pytest.raises(ValueError, match=r"readout_ids \(9693, 2152\) pass the vocabulary of 517"):
        qwen3.score(ops, read(), ops.handle("B", "S", 66), ops.batch())


def test_a_score_is_the_softmax_over_yes_and_no_and_never_overflows() -> None:
    logits = np.array([[0.0, 0.0], [2.0, 1.0], [1.0, 2.0], [900.0, -900.0], [-900.0, 900.0]], np.float32)
    logistic = 1 / (1 + np.exp(-1.0))
    assert qwen3.read_scores(logits).dtype == np.float32
    assert qwen3.read_scores(logits) == pytest.approx([0.5, logistic, 1 - logistic, 1.0, 0.0], abs=1e-7)
