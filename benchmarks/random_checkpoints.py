"""Checkpoints of published shapes with random weights: speed and memory do not depend on what a model has learnt."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from synapse_host.ops.dtypes import bf16_bits

#: Spread of the weights, as these models are initialised.
_STD = 0.02
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Shape:
    """One published model: its config.json and the shape of every tensor."""

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def vocab(self) -> int:
        """Tokens of its vocabulary."""
        return int(self.config["vocab_size"])

    @property
    def parameters(self) -> int:
        """Numbers in all its tensors."""
        return sum(math.prod(shape) for shape in self.tensors.values())


def write_checkpoint(directory: Path, shape: Shape) -> None:
    """Write config.json and model.safetensors in bfloat16; norms are ones, everything else is drawn."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(dict(shape.config)), encoding="utf-8")
    header: dict[str, Any] = {}
    end = 0
    for name, dims in shape.tensors.items():
        begin, end = end, end + 2 * math.prod(dims)
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for piece in _pieces(shape):
            file.write(piece)


def _pieces(shape: Shape) -> Iterator[bytes]:
    rng = np.random.default_rng(7)
    for name, dims in shape.tensors.items():
        left = math.prod(dims)
        while left:
            count = min(left, _CHUNK)
            left -= count
            norm = name.endswith(("norm.weight", "layernorm.weight"))
            drawn = np.ones(count, np.float32) if norm else rng.standard_normal(count, dtype=np.float32) * _STD
            yield bf16_bits(drawn).tobytes()


def _gte_modernbert() -> Shape:
    c, wide, layers, vocab = 768, 1152, 22, 50368
    tensors = {"embeddings.tok_embeddings.weight": (vocab, c), "embeddings.norm.weight": (c,)}
    for i in range(layers):
        tensors |= {f"layers.{i}.attn_norm.weight": (c,)} if i else {}
        tensors |= {
            f"layers.{i}.attn.Wqkv.weight": (3 * c, c),
            f"layers.{i}.attn.Wo.weight": (c, c),
            f"layers.{i}.mlp_norm.weight": (c,),
            f"layers.{i}.mlp.Wi.weight": (2 * wide, c),
            f"layers.{i}.mlp.Wo.weight": (c, wide),
        }
    config = {
        "architectures": ["ModernBertModel"],
        "model_type": "modernbert",
        "vocab_size": vocab,
        "hidden_size": c,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": 12,
        "max_position_embeddings": 8192,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
        "hidden_activation": "gelu",
        "norm_eps": 1e-5,
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": 50283,
        "bos_token_id": 50281,
        "cls_token_id": 50281,
        "eos_token_id": 50282,
        "sep_token_id": 50282,
    }
    return Shape(config, tensors | {"final_norm.weight": (c,)})


def _qwen3_embedding() -> Shape:
    c, wide, layers, vocab, heads, key_heads, size = 1024, 3072, 28, 151_669, 16, 8, 128
    tensors: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocab, c)}
    for i in range(layers):
        layer = f"layers.{i}"
        tensors |= {
            f"{layer}.input_layernorm.weight": (c,),
            f"{layer}.self_attn.q_proj.weight": (heads * size, c),
            f"{layer}.self_attn.k_proj.weight": (key_heads * size, c),
            f"{layer}.self_attn.v_proj.weight": (key_heads * size, c),
            f"{layer}.self_attn.o_proj.weight": (c, heads * size),
            f"{layer}.self_attn.q_norm.weight": (size,),
            f"{layer}.self_attn.k_norm.weight": (size,),
            f"{layer}.post_attention_layernorm.weight": (c,),
            f"{layer}.mlp.gate_proj.weight": (wide, c),
            f"{layer}.mlp.up_proj.weight": (wide, c),
            f"{layer}.mlp.down_proj.weight": (c, wide),
        }
    config = {
        "architectures": ["Qwen3Model"],
        "model_type": "qwen3",
        "vocab_size": vocab,
        "hidden_size": c,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": size,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "bos_token_id": 151_643,
        "eos_token_id": 151_643,
    }
    return Shape(config, tensors | {"norm.weight": (c,)})


#: The shapes of the catalog's two sizes.
SHAPES: Mapping[str, Shape] = MappingProxyType({"gte": _gte_modernbert(), "qwen3": _qwen3_embedding()})
