"""BERT encoders: MiniLM, bge and e5 shapes.

Token, position and type embeddings with a layer norm; post-norm blocks of bidirectional attention and a GELU
feed-forward; pooled by mean, first or last row. Weight names are those of the published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.families.pooling import pooled
from synapse_host.ops.tensor_ops import Activation, Batch, Cache, GeluKind, Rows, TensorOps

#: Names of the activation in config.json and the form of GELU each stands for.
_GELU_FORMS: Mapping[str, GeluKind] = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True, slots=True)
class BertConfig:
    """What of config.json the mathematics needs."""

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    token_types: int
    eps: float
    gelu: GeluKind
    pooling: str
    normalize: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, pooling: str, normalize: bool) -> BertConfig:
        """Read config.json; raises ``ValueError`` naming a field that is missing or not supported."""
        form = _GELU_FORMS.get(config.get("hidden_act", "gelu"))
        if form is None:
            raise ValueError(f"hidden_act {config['hidden_act']!r} is not one of {', '.join(_GELU_FORMS)}")
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError(f"position_embedding_type {config['position_embedding_type']!r} is not 'absolute'")
        try:
            return cls(
                vocab_size=int(config["vocab_size"]),
                hidden_size=int(config["hidden_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=int(config["num_attention_heads"]),
                intermediate_size=int(config["intermediate_size"]),
                positions=int(config["max_position_embeddings"]),
                token_types=int(config.get("type_vocab_size", 2)),
                eps=float(config.get("layer_norm_eps", 1e-12)),
                gelu=form,
                pooling=pooling,
                normalize=normalize,
            )
        except KeyError as missing:
            raise ValueError(f"config.json has no {missing.args[0]!r}, which a BERT model needs") from missing


def stem(ops: TensorOps, cfg: BertConfig, batch: Batch) -> Rows:
    """Embeddings, summed and normalised."""
    c = cfg.hidden_size
    words = ops.embedding(batch.ids, ops.weight("embeddings.word_embeddings.weight", (cfg.vocab_size, c)))
    places = ops.positions(batch, ops.weight("embeddings.position_embeddings.weight", (cfg.positions, c)))
    kinds = ops.table_row(ops.weight("embeddings.token_type_embeddings.weight", (cfg.token_types, c)), 0)
    return _norm(ops, cfg, "embeddings.LayerNorm", ops.add(ops.add(words, kinds), places))


def block(ops: TensorOps, cfg: BertConfig, i: int, x: Rows, batch: Batch, cache: Cache = None) -> Rows:
    """Attention and feed-forward of layer ``i``, each with its residual and norm after."""
    layer = f"encoder.layer.{i}"
    c, wide = cfg.hidden_size, cfg.intermediate_size
    q, k, v = (
        ops.heads(_linear(ops, f"{layer}.attention.self.{name}", x, c, c), cfg.heads)
        for name in ("query", "key", "value")
    )
    context = ops.merge_heads(ops.attention(q, k, v, batch, scale=1.0 / math.sqrt(c // cfg.heads)))
    context = _linear(ops, f"{layer}.attention.output.dense", context, c, c)
    x = _add_norm(ops, cfg, f"{layer}.attention.output.LayerNorm", context, x)
    act: Activation = "gelu" if cfg.gelu == "erf" else "gelu_tanh"
    inner = ops.linear(
        x,
        ops.weight(f"{layer}.intermediate.dense.weight", (wide, c)),
        ops.weight(f"{layer}.intermediate.dense.bias", (wide,)),
        act,
    )
    inner = _linear(ops, f"{layer}.output.dense", inner, c, wide)
    return _add_norm(ops, cfg, f"{layer}.output.LayerNorm", inner, x)


def head(ops: TensorOps, cfg: BertConfig, x: Rows, batch: Batch) -> Rows:
    """The sentence vector: pooled, and of unit length when the model asks for it."""
    rows = pooled(ops, cfg.pooling, x, batch)
    return ops.l2_normalize(rows) if cfg.normalize else rows


def _linear(ops: TensorOps, name: str, x: Rows, out: int, into: int) -> Rows:
    return ops.linear(x, ops.weight(f"{name}.weight", (out, into)), ops.weight(f"{name}.bias", (out,)))


def _norm(ops: TensorOps, cfg: BertConfig, name: str, x: Rows) -> Rows:
    c = (cfg.hidden_size,)
    return ops.layer_norm(x, ops.weight(f"{name}.weight", c), ops.weight(f"{name}.bias", c), cfg.eps)


def _add_norm(ops: TensorOps, cfg: BertConfig, name: str, x: Rows, residual: Rows) -> Rows:
    c = (cfg.hidden_size,)
    _, normed = ops.add_layer_norm(x, residual, ops.weight(f"{name}.weight", c), ops.weight(f"{name}.bias", c), cfg.eps)
    return normed
