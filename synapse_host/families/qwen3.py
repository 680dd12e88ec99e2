"""Qwen3: decoders used as embedding models, as rerankers and for generation.

Pre-norm blocks of causal attention in which several query heads share one key head, and a gated feed-forward. Queries
and keys are RMS-normalised per head before they are rotated. The width of a head is a field of its own: heads times
width need not be the hidden size. Weight names are those of the published checkpoints.

Source: the ``Qwen3ForCausalLM`` of Hugging Face transformers, whose outputs the fixtures record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from synapse_host.families import config_fields as fields
from synapse_host.families.pooling import pooled
from synapse_host.ops.tensor_ops import Batch, Cache, Handle, Heads, Rows, Table, TensorOps, Weight

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: The tokens "yes" and "no" of the published vocabulary, whose logits a reranker is read by (model card of
#: Qwen3-Reranker).
YES_AND_NO = (9693, 2152)
#: Width of a head where config.json names none, as in transformers.
_DEFAULT_HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """What of config.json the mathematics needs.

    ``theta`` is the base of the rotary angles. ``readout`` are the tokens that say yes and no to a reranker; a field
    ``readout_ids`` names them where they are not those of the published vocabulary.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    positions: int
    eps: float
    theta: float
    tied: bool
    readout: tuple[int, int]
    pooling: str
    normalize: bool

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, pooling: str, normalize: bool) -> Qwen3Config:
        """Read config.json; raises ``ValueError`` naming a field that is missing, wrong or not supported."""
        fields.require(config, "hidden_act", "silu")
        fields.require(config, "attention_bias", False)
        fields.require(config, "use_sliding_window", False)
        local = set(config.get("layer_types") or ()) - {"full_attention"}
        if local:
            raise ValueError(f"layer_types name {sorted(local)}; only 'full_attention' is computed here")
        heads = fields.whole(config, "num_attention_heads")
        kv_heads = fields.whole(config, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ValueError(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
        head_dim = fields.whole(config, "head_dim", _DEFAULT_HEAD_DIM)
        if head_dim % 2:
            raise ValueError(f"head_dim {head_dim} is odd and cannot be rotated by halves")
        return cls(
            vocab_size=fields.whole(config, "vocab_size"),
            hidden_size=fields.whole(config, "hidden_size"),
            layers=fields.whole(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=fields.whole(config, "intermediate_size"),
            positions=fields.whole(config, "max_position_embeddings"),
            eps=fields.positive(config, "rms_norm_eps", 1e-6),
            theta=_rope_base(config),
            tied=fields.flag(config, "tie_word_embeddings", False),
            readout=_readout(config),
            pooling=pooling,
            normalize=normalize,
        )


def _rope_base(config: Mapping[str, Any]) -> float:
    """The base, from either of the two places transformers has kept it in; scaled angles are refused."""
    rules = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rules, Mapping):
        raise ValueError(f"rope_parameters {rules!r} is not an object")
    kind = rules.get("rope_type", rules.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rope_type {kind!r} is not 'default', the only form computed here")
    return fields.positive(rules if "rope_theta" in rules else config, "rope_theta")


def _readout(config: Mapping[str, Any]) -> tuple[int, int]:
    ids = config.get("readout_ids", YES_AND_NO)
    if (
        not isinstance(ids, list | tuple)
        or len(ids) != 2
        or not all(type(token) is int and token >= 0 for token in ids)
    ):
        raise ValueError(f"readout_ids {ids!r} are not two token ids")
    return ids[0], ids[1]


def stem(ops: TensorOps, cfg: Qwen3Config, batch: Batch) -> Rows:
    """Token embeddings; positions enter by rotation."""
    return ops.embedding(batch.ids, _embeddings(ops, cfg))


def block(ops: TensorOps, cfg: Qwen3Config, i: int, x: Rows, batch: Batch, cache: Cache = None) -> Rows:
    """Attention and feed-forward of layer ``i``, each normalised before and added after."""
    layer = f"layers.{i}"
    normed = ops.rms_norm(x, _vector(ops, f"{layer}.input_layernorm", cfg.hidden_size), cfg.eps)
    context = _attended(ops, cfg, i, normed, batch, cache)
    after = _vector(ops, f"{layer}.post_attention_layernorm", cfg.hidden_size)
    x, normed = ops.add_rms_norm(x, context, after, cfg.eps)
    return ops.add(x, _feed_forward(ops, cfg, f"{layer}.mlp", normed))


def head(ops: TensorOps, cfg: Qwen3Config, x: Rows, batch: Batch) -> Rows:
    """The sentence vector: normalised rows, pooled, and of unit length when the model asks for it."""
    rows = pooled(ops, cfg.pooling, _final_norm(ops, cfg, x), batch)
    return ops.l2_normalize(rows) if cfg.normalize else rows


def check_readout(cfg: Qwen3Config) -> None:
    """Refuse a model whose yes and no are none of its tokens: ``ValueError`` with both numbers."""
    if max(cfg.readout) >= cfg.vocab_size:
        raise ValueError(f"readout_ids {cfg.readout} pass the vocabulary of {cfg.vocab_size}; name the model's own")


def score(ops: TensorOps, cfg: Qwen3Config, x: Rows, batch: Batch) -> Rows:
    """The logits of yes and no after the last valid row, as [B, 1, 2]; no other row of the vocabulary is multiplied.

    Raises ``ValueError`` when one of the two tokens is outside the vocabulary.
    """
    check_readout(cfg)
    last = _final_norm(ops, cfg, ops.last_row(x, batch))
    return ops.logits(last, _output_embeddings(ops, cfg), cfg.readout)


def read_scores(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Probability of yes, of the two: the softmax of [B, 2] as one logistic of their difference."""
    # Imported here, so that the table of families costs no numpy to whoever only describes a backend.
    import numpy as np

    behind = logits[:, 1].astype(np.float64) - logits[:, 0]
    tail = np.exp(-np.abs(behind))
    probability: npt.NDArray[np.float64] = np.where(behind > 0, tail, 1.0) / (1.0 + tail)
    return probability.astype(np.float32)


def next_token(ops: TensorOps, cfg: Qwen3Config, x: Rows, batch: Batch) -> Handle:
    """The likeliest token after the last valid one of each row, as i32[B, 1]."""
    last = _final_norm(ops, cfg, ops.last_row(x, batch))
    return ops.argmax(ops.logits(last, _output_embeddings(ops, cfg)))


def _attended(ops: TensorOps, cfg: Qwen3Config, i: int, x: Rows, batch: Batch, cache: Cache) -> Rows:
    name = f"layers.{i}.self_attn"
    table = ops.rope_table(cfg.theta, cfg.head_dim)
    q = _rotated(ops, cfg, f"{name}.q", _project(ops, cfg, f"{name}.q_proj", x, cfg.heads), table, batch)
    k = _rotated(ops, cfg, f"{name}.k", _project(ops, cfg, f"{name}.k_proj", x, cfg.kv_heads), table, batch)
    v = _project(ops, cfg, f"{name}.v_proj", x, cfg.kv_heads)
    k, v = ops.kv_append(cache, i, k, v, batch)
    context = ops.attention(q, k, v, batch, scale=1.0 / math.sqrt(cfg.head_dim), causal=True)
    width = cfg.heads * cfg.head_dim
    return ops.linear(ops.merge_heads(context), ops.weight(f"{name}.o_proj.weight", (cfg.hidden_size, width)))


def _project(ops: TensorOps, cfg: Qwen3Config, name: str, x: Rows, heads: int) -> Heads:
    weight = ops.weight(f"{name}.weight", (heads * cfg.head_dim, cfg.hidden_size))
    return ops.heads(ops.linear(x, weight), heads)


def _rotated(ops: TensorOps, cfg: Qwen3Config, name: str, h: Heads, table: Table, batch: Batch) -> Heads:
    normed = ops.rms_norm(h, _vector(ops, f"{name}_norm", cfg.head_dim), cfg.eps)
    return ops.rope(normed, table, batch)


def _feed_forward(ops: TensorOps, cfg: Qwen3Config, name: str, x: Rows) -> Rows:
    c, wide = cfg.hidden_size, cfg.intermediate_size
    gate, up = (ops.linear(x, ops.weight(f"{name}.{part}_proj.weight", (wide, c))) for part in ("gate", "up"))
    return ops.linear(ops.swiglu(gate, up), ops.weight(f"{name}.down_proj.weight", (c, wide)))


def _final_norm(ops: TensorOps, cfg: Qwen3Config, x: Rows) -> Rows:
    return ops.rms_norm(x, _vector(ops, "norm", cfg.hidden_size), cfg.eps)


def _vector(ops: TensorOps, name: str, size: int) -> Weight:
    return ops.weight(f"{name}.weight", (size,))


def _embeddings(ops: TensorOps, cfg: Qwen3Config) -> Weight:
    return ops.weight("embed_tokens.weight", (cfg.vocab_size, cfg.hidden_size))


def _output_embeddings(ops: TensorOps, cfg: Qwen3Config) -> Weight:
    """The rows logits are made with: a tensor of their own, or those of the tokens when the two are tied."""
    return _embeddings(ops, cfg) if cfg.tied else ops.weight("lm_head.weight", (cfg.vocab_size, cfg.hidden_size))
