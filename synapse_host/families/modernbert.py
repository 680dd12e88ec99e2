"""ModernBERT encoders and rerankers: gte-modernbert shapes.

Pre-norm blocks over rotary positions. Some layers see the whole text, the others a window around each token, and the
two kinds rotate by different bases; the first layer takes the embeddings' norm in place of one of its own. The
feed-forward gates the first half of its features by GELU. Weight names are those of the published checkpoints.
"""

from __future__ import annotations

import math

from synapse_host.families.labels import require_one_label
from synapse_host.families.modernbert_config import ModernBertConfig
from synapse_host.families.pooling import pooled
from synapse_host.ops.tensor_ops import Batch, Cache, Heads, Rows, TensorOps, Weight


def stem(ops: TensorOps, cfg: ModernBertConfig, batch: Batch) -> Rows:
    """Token embeddings, normalised; positions come with the rotations."""
    table = ops.weight("embeddings.tok_embeddings.weight", (cfg.vocab_size, cfg.hidden_size))
    return _norm(ops, cfg, "embeddings.norm", ops.embedding(batch.ids, table))


def block(ops: TensorOps, cfg: ModernBertConfig, i: int, x: Rows, batch: Batch, cache: Cache = None) -> Rows:
    """Attention and feed-forward of layer ``i``, each after its norm and added to what came in."""
    layer = f"layers.{i}"
    c = cfg.hidden_size
    normed = x if i == 0 else _norm(ops, cfg, f"{layer}.attn_norm", x)
    context = ops.merge_heads(_attention(ops, cfg, i, normed, batch))
    context = _linear(ops, f"{layer}.attn.Wo", context, c, c, biased=cfg.attention_bias)
    name = f"{layer}.mlp_norm"
    x, normed = ops.add_layer_norm(x, context, ops.weight(f"{name}.weight", (c,)), _norm_bias(ops, cfg, name), cfg.eps)
    return ops.add(x, _feed_forward(ops, cfg, layer, normed))


def head(ops: TensorOps, cfg: ModernBertConfig, x: Rows, batch: Batch) -> Rows:
    """The sentence vector: normalised, pooled, and of unit length when the model asks for it."""
    rows = pooled(ops, cfg.pooling, _norm(ops, cfg, "final_norm", x), batch)
    return ops.l2_normalize(rows) if cfg.normalize else rows


def score(ops: TensorOps, cfg: ModernBertConfig, x: Rows, batch: Batch) -> Rows:
    """The logit of a sequence classifier with one label: normalised, pooled, dense, GELU, norm, classifier.

    Raises ``ValueError`` when config.json names another number of labels.
    """
    require_one_label(cfg.labels)
    c = cfg.hidden_size
    rows = pooled(ops, cfg.classifier_pooling, _norm(ops, cfg, "final_norm", x), batch)
    inner = ops.gelu(_linear(ops, "head.dense", rows, c, c, biased=cfg.classifier_bias), cfg.classifier_gelu)
    return _linear(ops, "classifier", _norm(ops, cfg, "head.norm", inner), 1, c, biased=True)


def _attention(ops: TensorOps, cfg: ModernBertConfig, i: int, x: Rows, batch: Batch) -> Heads:
    c, size = cfg.hidden_size, cfg.hidden_size // cfg.heads
    theta, window = (cfg.local_theta, cfg.window) if cfg.is_local(i) else (cfg.global_theta, None)
    joined = _linear(ops, f"layers.{i}.attn.Wqkv", x, 3 * c, c, biased=cfg.attention_bias)
    q, k, v = (ops.heads(part, cfg.heads) for part in ops.split(joined, (c, c, c)))
    table = ops.rope_table(theta, size)
    q, k = (ops.rope(part, table, batch) for part in (q, k))
    return ops.attention(q, k, v, batch, scale=1.0 / math.sqrt(size), window=window)


def _feed_forward(ops: TensorOps, cfg: ModernBertConfig, layer: str, x: Rows) -> Rows:
    c, wide = cfg.hidden_size, cfg.intermediate_size
    inner = ops.geglu(_linear(ops, f"{layer}.mlp.Wi", x, 2 * wide, c, biased=cfg.mlp_bias), cfg.gelu)
    return _linear(ops, f"{layer}.mlp.Wo", inner, c, wide, biased=cfg.mlp_bias)


def _linear(ops: TensorOps, name: str, x: Rows, out: int, into: int, *, biased: bool) -> Rows:
    bias = ops.weight(f"{name}.bias", (out,)) if biased else None
    return ops.linear(x, ops.weight(f"{name}.weight", (out, into)), bias)


def _norm(ops: TensorOps, cfg: ModernBertConfig, name: str, x: Rows) -> Rows:
    weight = ops.weight(f"{name}.weight", (cfg.hidden_size,))
    return ops.layer_norm(x, weight, _norm_bias(ops, cfg, name), cfg.eps)


def _norm_bias(ops: TensorOps, cfg: ModernBertConfig, name: str) -> Weight | None:
    return ops.weight(f"{name}.bias", (cfg.hidden_size,)) if cfg.norm_bias else None
