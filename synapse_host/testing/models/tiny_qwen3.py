"""Tiny Qwen3 checkpoints made from a seed, under the names of the published causal model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from synapse_host.testing.models.tiny_models import Float32, tiny_tokenizer, uniform_noise, write_safetensors

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType


@dataclass(frozen=True, slots=True)
class TinyQwen3:
    """Sizes of a tiny decoder; every seed and size gives another model.

    ``old_rope`` writes the rotary base where transformers kept it before version 5.
    """

    seed: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    tied: bool
    theta: float = 1e6
    eps: float = 1e-6
    old_rope: bool = False

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        rope: dict[str, Any] = {"rope_parameters": {"rope_theta": self.theta, "rope_type": "default"}}
        if self.old_rope:
            rope = {"rope_theta": self.theta, "rope_scaling": None}
        return rope | {
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "eos_token_id": 3,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.positions,
            "model_type": "qwen3",
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": self.tied,
            "use_sliding_window": False,
            "vocab_size": self.vocab,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights; the output embeddings only where they are not the token embeddings."""
        return {name: self._tensor(name, shape) for name, shape in self._shapes()}

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Large enough that attention is uneven and each norm shows, small enough that rounding is not magnified.

        Transformers in bfloat16 comes to cosines of 0.9994 to 0.9999 with float64 on models drawn so; half as much
        again on the norms of queries and keys brings it to 0.996.
        """
        noise = uniform_noise(f"{self.seed}/{name}", math.prod(shape)).reshape(shape)
        if len(shape) == 1:
            return (1.0 + 0.25 * noise).astype(np.float32)
        gain = 0.4 if "embed_tokens" in name else 1.5 / math.sqrt(shape[1])
        return (gain * noise).astype(np.float32)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        c = self.hidden
        yield "model.embed_tokens.weight", (self.vocab, c)
        for i in range(self.layers):
            yield from self._layer(f"model.layers.{i}")
        yield "model.norm.weight", (c,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, c)

    def _layer(self, layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        c, wide, d = self.hidden, self.intermediate, self.head_dim
        yield f"{layer}.input_layernorm.weight", (c,)
        yield f"{layer}.self_attn.q_proj.weight", (self.heads * d, c)
        yield f"{layer}.self_attn.k_proj.weight", (self.kv_heads * d, c)
        yield f"{layer}.self_attn.v_proj.weight", (self.kv_heads * d, c)
        yield f"{layer}.self_attn.o_proj.weight", (c, self.heads * d)
        yield f"{layer}.self_attn.q_norm.weight", (d,)
        yield f"{layer}.self_attn.k_norm.weight", (d,)
        yield f"{layer}.post_attention_layernorm.weight", (c,)
        yield f"{layer}.mlp.gate_proj.weight", (wide, c)
        yield f"{layer}.mlp.up_proj.weight", (wide, c)
        yield f"{layer}.mlp.down_proj.weight", (c, wide)


#: Decoders whose outputs by transformers are recorded under tests/fixtures: one, two, three and four query heads to a
#: key head, heads wider and narrower than hidden / heads, output embeddings tied and not, two rotary bases.
TINY_QWEN3S: Mapping[str, TinyQwen3] = MappingProxyType(
    {
        "one_key_head": TinyQwen3(31, 36, 2, 3, 1, 18, 50, 101, 300, tied=True),
        "pairs": TinyQwen3(32, 44, 3, 6, 3, 14, 77, 333, 700, tied=False, old_rope=True),
        "no_sharing": TinyQwen3(33, 50, 2, 5, 5, 6, 45, 259, 700, tied=True, theta=1e4, eps=1e-3),
        "fours": TinyQwen3(34, 66, 3, 8, 2, 22, 130, 517, 1000, tied=False),
    }
)


def write_qwen3(directory: Path, model: TinyQwen3, dtype: DType = "f32", **more: Any) -> dict[str, Any]:
    """Write model.safetensors in ``dtype``, config.json and tokenizer.json of ``model``, and return the config.

    ``more`` are fields of the config beside those of the model.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = model.config() | more
    write_safetensors(directory / "model.safetensors", model.tensors(), dtype)
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (directory / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(model.vocab)), encoding="utf-8")
    return config
