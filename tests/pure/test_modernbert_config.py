"""config.json of a ModernBERT: both spellings are the same model, and a field out of order is named."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.families import modernbert
from synapse_host.families.modernbert_config import ModernBertConfig
from synapse_host.ops.null_ops import NullOps
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS

#: gte-modernbert-base, the fields that matter.
PUBLISHED: dict[str, Any] = {
    "model_type": "modernbert",
    "attention_bias": False,
    "classifier_pooling": "mean",
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "intermediate_size": 1152,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "vocab_size": 50368,
}
NEWER_FIELDS = {
    "layer_types": ["full_attention" if i % 3 == 0 else "sliding_attention" for i in range(22)],
    "rope_parameters": {
        "full_attention": {"rope_theta": 160000.0, "rope_type": "default"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
}
REPLACED = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")


def read(config: dict[str, Any]) -> ModernBertConfig:
    return ModernBertConfig.from_config(config, pooling="cls", normalize=True)


def test_the_published_config_is_read() -> None:
    config = read(PUBLISHED)
    assert (config.layers, config.heads, config.window, config.eps) == (22, 12, 64, 1e-5)
    assert [i for i in range(22) if not config.is_local(i)] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert (config.global_theta, config.local_theta) == (160000.0, 10000.0)
    assert (config.norm_bias, config.attention_bias, config.mlp_bias) == (False, False, False)


def test_both_spellings_are_the_same_model() -> None:
    newer = {name: value for name, value in PUBLISHED.items() if name not in REPLACED} | NEWER_FIELDS
    assert read(newer) == read(PUBLISHED)


def test_absent_fields_have_the_values_of_the_published_configuration() -> None:
    optional = (
        *REPLACED,
        "local_attention",
        "norm_eps",
        "norm_bias",
        "attention_bias",
        "mlp_bias",
        "hidden_activation",
    )
    assert read({name: value for name, value in PUBLISHED.items() if name not in optional}) == read(PUBLISHED)


def test_a_null_local_base_is_the_global_one() -> None:
    assert read(PUBLISHED | {"local_rope_theta": None}).local_theta == 160000.0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation 'silu'"),
        ({"hidden_size": 780}, "hidden_size 780 gives 12 heads"),
        ({"hidden_size": 756}, "hidden_size 756 gives 12 heads no even number"),
        ({"num_attention_heads": 0}, "num_attention_heads 0"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers 0"),
        ({"local_attention": "128"}, "local_attention '128'"),
        ({"global_rope_theta": 0}, "global_rope_theta 0"),
        ({"local_rope_theta": "1e4"}, "local_rope_theta '1e4'"),
        ({"norm_eps": True}, "norm_eps True"),
        ({"mlp_bias": 1}, "mlp_bias 1"),
        ({"layer_types": ["full_attention"] * 21}, "each of 22 layers"),
        ({"layer_types": ["full_attention"] * 21 + ["linear_attention"]}, "each of 22 layers"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "rope type 'linear'"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 7}}, "rope type 7"),
    ],
)
def test_a_field_out_of_order_is_named_with_its_value(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(PUBLISHED | change)


@pytest.mark.parametrize("name", TINY_MODERNBERTS)
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_the_family_is_recorded_without_a_look_at_any_tensor(name: str, pooling: str) -> None:
    tiny = TINY_MODERNBERTS[name]
    config = ModernBertConfig.from_config(tiny.config(), pooling=pooling, normalize=True)
    shapes = {key: tensor.shape for key, tensor in tiny.tensors().items()}
    ops = NullOps(shapes)
    batch = ops.batch()
    x = modernbert.stem(ops, config, batch)
    for i in range(config.layers):
        x = modernbert.block(ops, config, i, x, batch)
    assert ops.shape_of(ops.result(modernbert.head(ops, config, x, batch))) == ("B", tiny.hidden)
    assert ops.weights == shapes
