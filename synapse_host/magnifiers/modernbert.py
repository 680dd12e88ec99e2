"""ModernBERT: windows shorter than the rows, two rotary bases, a gate near where the two forms of GELU differ most."""

from __future__ import annotations

from typing import Any

from synapse_host.magnifiers.magnifier import LENGTHS, LONG_LENGTHS, VOCAB, Array, Magnifier, Numbers, pairs_of

SEED = 20_260_204
HIDDEN, LAYERS, HEADS, WIDE, POSITIONS, SPAN = 48, 4, 3, 56, 384, 12


def modernbert() -> Magnifier:
    """The encoder and cross-encoder; its first and last layer see the whole text, the two between a window."""
    numbers = Numbers(SEED)
    tensors = _tensors(numbers)
    rows = numbers.rows((*LENGTHS, *LONG_LENGTHS))
    return Magnifier("modernbert", _CONFIG, tensors, rows, pairs_of(rows))


_CONFIG: dict[str, Any] = {
    "model_type": "modernbert",
    "architectures": ["ModernBertModel"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
    "local_attention": SPAN,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
    "norm_eps": 1e-5,
    "norm_bias": True,
    "attention_bias": True,
    "mlp_bias": True,
    "hidden_activation": "gelu",
    "classifier_activation": "gelu",
    "classifier_bias": True,
    "classifier_pooling": "mean",
    "num_labels": 1,
}


def _tensors(numbers: Numbers) -> dict[str, Array]:
    # Variance of the embeddings below epsilon, beside a large bias: another epsilon turns every row.
    tensors = {"embeddings.tok_embeddings.weight": numbers.normal(VOCAB, HIDDEN, scale=3e-3)}
    tensors |= _norm(numbers, "embeddings.norm", bias=0.5)
    for i in range(LAYERS):
        layer = f"layers.{i}"
        if i:
            tensors |= _norm(numbers, f"{layer}.attn_norm", bias=0.1)
        tensors |= _linear(numbers, f"{layer}.attn.Wqkv", 3 * HIDDEN, HIDDEN, scale=0.25)
        tensors |= _linear(numbers, f"{layer}.attn.Wo", HIDDEN, HIDDEN, scale=0.2)
        tensors |= _norm(numbers, f"{layer}.mlp_norm", bias=0.1)
        tensors |= _gate(numbers, f"{layer}.mlp.Wi")
        tensors |= _linear(numbers, f"{layer}.mlp.Wo", HIDDEN, WIDE, scale=20.0)
    tensors |= _norm(numbers, "final_norm", bias=0.1)
    tensors |= _linear(numbers, "head.dense", HIDDEN, HIDDEN, scale=0.15)
    tensors |= _norm(numbers, "head.norm", bias=0.1)
    return tensors | _linear(numbers, "classifier", 1, HIDDEN, scale=0.3)


def _gate(numbers: Numbers, name: str) -> dict[str, Array]:
    """The gated half stands near -3, where gelu is about -0.004; the other half is of common size."""
    gate = _linear(numbers, name, 2 * WIDE, HIDDEN, scale=0.06)
    gate[f"{name}.bias"][:WIDE] -= 3.0
    gate[f"{name}.bias"][WIDE:] += 1.0
    return gate


def _linear(numbers: Numbers, name: str, out: int, into: int, *, scale: float) -> dict[str, Array]:
    return {f"{name}.weight": numbers.normal(out, into, scale=scale), f"{name}.bias": numbers.normal(out, scale=0.1)}


def _norm(numbers: Numbers, name: str, *, bias: float) -> dict[str, Array]:
    return {
        f"{name}.weight": numbers.normal(HIDDEN, scale=0.1, mean=1.0),
        f"{name}.bias": numbers.normal(HIDDEN, scale=bias),
    }
