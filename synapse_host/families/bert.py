"""BERT encoders: MiniLM, bge and e5 shapes.

Token, position and type embeddings with a layer norm; post-norm blocks of bidirectional attention and a GELU
feed-forward; pooled by mean, first or last row. Weight names are those of the published checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from synapse_host.families.config_fields import gelu_form, positive, whole
from synapse_host.families.labels import label_count, require_one_label
from synapse_host.families.pooling import pooled
from synapse_host.ops.tensor_ops import Activation, Batch, Cache, GeluKind, Rows, TensorOps


@dataclass(frozen=True, slots=True)
class BertConfig:
    """What of config.json the mathematics needs.

    ``positions`` are those a text may take; the table holds ``first_position`` unused rows before them.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    positions: int
    first_position: int
    token_types: int
    eps: float
    gelu: GeluKind
    pooling: str
    normalize: bool
    labels: int = 1

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], *, pooling: str, normalize: bool, first_position: int = 0
    ) -> BertConfig:
        """Read config.json; raises ``ValueError`` naming a field that is missing, wrong or not supported."""
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ValueError(f"position_embedding_type {config['position_embedding_type']!r} is not 'absolute'")
        heads, hidden = whole(config, "num_attention_heads"), whole(config, "hidden_size")
        if hidden % heads:
            raise ValueError(f"num_attention_heads {heads} does not divide hidden_size {hidden}")
        return cls(
            vocab_size=whole(config, "vocab_size"),
            hidden_size=hidden,
            layers=whole(config, "num_hidden_layers"),
            heads=heads,
            intermediate_size=whole(config, "intermediate_size"),
            positions=_positions(config, first_position),
            first_position=first_position,
            token_types=whole(config, "type_vocab_size", 2),
            eps=positive(config, "layer_norm_eps", 1e-12),
            gelu=gelu_form(config, "hidden_act"),
            pooling=pooling,
            normalize=normalize,
            labels=label_count(config),
        )


def _positions(config: Mapping[str, Any], first: int) -> int:
    rows = whole(config, "max_position_embeddings")
    if rows <= first:
        raise ValueError(f"max_position_embeddings {rows} leaves no position: the first {first} rows are not used")
    return rows - first


def stem(ops: TensorOps, cfg: BertConfig, batch: Batch) -> Rows:
    """Embeddings, summed and normalised."""
    c = cfg.hidden_size
    words = ops.embedding(batch.ids, ops.weight("embeddings.word_embeddings.weight", (cfg.vocab_size, c)))
    table = ops.weight("embeddings.position_embeddings.weight", (cfg.first_position + cfg.positions, c))
    places = ops.positions(batch, table, cfg.first_position)
    kind_table = ops.weight("embeddings.token_type_embeddings.weight", (cfg.token_types, c))
    kinds = ops.table_row(kind_table, 0) if batch.kinds is None else ops.embedding(batch.kinds, kind_table)
    return _norm(ops, cfg, "embeddings.LayerNorm", ops.add(ops.add(words, kinds), places))


def block(ops: TensorOps, cfg: BertConfig, i: int, x: Rows, batch: Batch, cache: Cache = None) -> Rows:
    """Attention and feed-forward of layer ``i``, each with its residual and norm after."""
    layer = f"encoder.layer.{i}"
    c, wide = cfg.hidden_size, cfg.intermediate_size
    q, k, v = (
        ops.heads(dense(ops, f"{layer}.attention.self.{name}", x, c, c), cfg.heads)
        for name in ("query", "key", "value")
    )
    context = ops.merge_heads(ops.attention(q, k, v, batch, scale=1.0 / math.sqrt(c // cfg.heads)))
    context = dense(ops, f"{layer}.attention.output.dense", context, c, c)
    x = _add_norm(ops, cfg, f"{layer}.attention.output.LayerNorm", context, x)
    act: Activation = "gelu" if cfg.gelu == "erf" else "gelu_tanh"
    inner = ops.linear(
        x,
        ops.weight(f"{layer}.intermediate.dense.weight", (wide, c)),
        ops.weight(f"{layer}.intermediate.dense.bias", (wide,)),
        act,
    )
    inner = dense(ops, f"{layer}.output.dense", inner, c, wide)
    return _add_norm(ops, cfg, f"{layer}.output.LayerNorm", inner, x)


def head(ops: TensorOps, cfg: BertConfig, x: Rows, batch: Batch) -> Rows:
    """The sentence vector: pooled, and of unit length when the model asks for it."""
    rows = pooled(ops, cfg.pooling, x, batch)
    return ops.l2_normalize(rows) if cfg.normalize else rows


def score(ops: TensorOps, cfg: BertConfig, x: Rows, batch: Batch) -> Rows:
    """The logit of a sequence classifier with one label: first row, dense, tanh, classifier.

    Raises ``ValueError`` when config.json names another number of labels.
    """
    require_one_label(cfg.labels)
    c = cfg.hidden_size
    first = ops.first_row(x, batch)
    pooler = ops.weight("pooler.dense.weight", (c, c)), ops.weight("pooler.dense.bias", (c,))
    return dense(ops, "classifier", ops.linear(first, *pooler, "tanh"), 1, c)


def dense(ops: TensorOps, name: str, x: Rows, out: int, into: int) -> Rows:
    """The layer ``name`` of a checkpoint, weight [out, into] and bias, over ``x``."""
    return ops.linear(x, ops.weight(f"{name}.weight", (out, into)), ops.weight(f"{name}.bias", (out,)))


def _norm(ops: TensorOps, cfg: BertConfig, name: str, x: Rows) -> Rows:
    c = (cfg.hidden_size,)
    return ops.layer_norm(x, ops.weight(f"{name}.weight", c), ops.weight(f"{name}.bias", c), cfg.eps)


def _add_norm(ops: TensorOps, cfg: BertConfig, name: str, x: Rows, residual: Rows) -> Rows:
    c = (cfg.hidden_size,)
    _, normed = ops.add_layer_norm(x, residual, ops.weight(f"{name}.weight", c), ops.weight(f"{name}.bias", c), cfg.eps)
    return normed
