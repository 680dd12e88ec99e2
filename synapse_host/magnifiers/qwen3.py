"""Qwen3: three query heads to a key head, narrower than the model, sharp causal attention, tokens of all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from synapse_host.magnifiers.magnifier import LENGTHS, LONG_LENGTHS, VOCAB, Array, Magnifier, Numbers, pairs_of

SEED = 20_260_205
HIDDEN, LAYERS, HEADS, KEY_HEADS, SIZE, WIDE, POSITIONS = 48, 3, 6, 2, 10, 72, 384


def qwen3() -> Magnifier:
    """The decoder as an embedding model and as a reranker by readout."""
    numbers = Numbers(SEED)
    tensors = _tensors(numbers)
    rows = numbers.rows((*LENGTHS, *LONG_LENGTHS))
    return Magnifier("qwen3", _CONFIG, tensors, rows, pairs_of(rows), pooling="last")


_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": SIZE,
    "intermediate_size": WIDE,
    "max_position_embeddings": POSITIONS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "readout_ids": [40, 41],
}


def _tensors(numbers: Numbers) -> dict[str, Array]:
    normal = numbers.normal
    # Mean squares around epsilon, each token of another size: another epsilon changes what tokens weigh beside others.
    sizes = np.exp(normal(VOCAB, 1, scale=1.0)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": sizes * normal(VOCAB, HIDDEN, scale=1e-3)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        tensors[f"{layer}.input_layernorm.weight"] = normal(HIDDEN, scale=0.1, mean=1.0)
        tensors[f"{layer}.self_attn.q_proj.weight"] = normal(HEADS * SIZE, HIDDEN, scale=0.2)
        tensors[f"{layer}.self_attn.k_proj.weight"] = normal(KEY_HEADS * SIZE, HIDDEN, scale=0.2)
        tensors[f"{layer}.self_attn.v_proj.weight"] = normal(KEY_HEADS * SIZE, HIDDEN, scale=0.2)
        tensors[f"{layer}.self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * SIZE, scale=0.3)
        tensors[f"{layer}.self_attn.q_norm.weight"] = normal(SIZE, scale=0.2, mean=1.2)
        tensors[f"{layer}.self_attn.k_norm.weight"] = normal(SIZE, scale=0.2, mean=1.2)
        tensors[f"{layer}.post_attention_layernorm.weight"] = normal(HIDDEN, scale=0.1, mean=1.0)
        tensors[f"{layer}.mlp.gate_proj.weight"] = normal(WIDE, HIDDEN, scale=0.15)
        tensors[f"{layer}.mlp.up_proj.weight"] = normal(WIDE, HIDDEN, scale=0.15)
        tensors[f"{layer}.mlp.down_proj.weight"] = normal(HIDDEN, WIDE, scale=0.12)
    tensors["model.norm.weight"] = normal(HIDDEN, scale=0.1, mean=1.0)
    return tensors | {"lm_head.weight": normal(VOCAB, HIDDEN, scale=0.15)}
