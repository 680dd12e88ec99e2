"""Tiny ModernBERT checkpoints made from a seed, and those whose outputs are recorded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from synapse_host.testing.models.tiny_models import Float32, uniform_noise


@dataclass(frozen=True, slots=True)
class TinyModernBert:
    """Sizes of a tiny encoder; ``span`` is ``local_attention``, and a local layer sees half of it to either side."""

    seed: int
    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocab: int
    positions: int
    span: int
    every: int = 3
    thetas: tuple[float, float] = (160_000.0, 10_000.0)
    biases: bool = False
    activation: str = "gelu"
    eps: float = 1e-5

    @property
    def edges(self) -> tuple[int, ...]:
        """Lengths around the window and around the first length that is computed in bands."""
        w = self.span // 2
        return (w, w + 1, w + 2, 2 * w, 2 * w + 1, 2 * w + 2, 255, 256, 257, 320, 321)

    def config(self) -> dict[str, Any]:
        """Its config.json, as the published ones are spelled."""
        return {
            "architectures": ["ModernBertModel"],
            "attention_bias": self.biases,
            "cls_token_id": 2,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "global_attn_every_n_layers": self.every,
            "global_rope_theta": self.thetas[0],
            "hidden_activation": self.activation,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "local_attention": self.span,
            "local_rope_theta": self.thetas[1],
            "max_position_embeddings": self.positions,
            "mlp_bias": self.biases,
            "model_type": "modernbert",
            "norm_bias": self.biases,
            "norm_eps": self.eps,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "pad_token_id": 0,
            "sep_token_id": 3,
            "vocab_size": self.vocab,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints."""
        return {name: self._tensor(name, shape) for name, shape in self._shapes()}

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """Large enough everywhere that attention is uneven and each bias and norm shows in the output."""
        noise = uniform_noise(f"{self.seed}/{name}", math.prod(shape)).reshape(shape)
        if "norm" in name and name.endswith(".weight"):
            return (1.0 + 0.25 * noise).astype(np.float32)
        if "embeddings" in name or len(shape) == 1:
            return (0.5 * noise).astype(np.float32)
        return ((1.6 if "Wqkv" in name else 1.0) / math.sqrt(shape[1]) * noise).astype(np.float32)

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        c, wide = self.hidden, self.intermediate
        yield "embeddings.tok_embeddings.weight", (self.vocab, c)
        yield from self._parts("embeddings.norm", (c,))
        for i in range(self.layers):
            if i:
                yield from self._parts(f"layers.{i}.attn_norm", (c,))
            yield from self._parts(f"layers.{i}.attn.Wqkv", (3 * c, c))
            yield from self._parts(f"layers.{i}.attn.Wo", (c, c))
            yield from self._parts(f"layers.{i}.mlp_norm", (c,))
            yield from self._parts(f"layers.{i}.mlp.Wi", (2 * wide, c))
            yield from self._parts(f"layers.{i}.mlp.Wo", (c, wide))
        yield from self._parts("final_norm", (c,))

    def _parts(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        if self.biases:
            yield f"{name}.bias", shape[:1]


#: Windows shorter than a block of the banded form, odd, and as published; odd halves of heads; biases; every second
#: layer global; the tanh form of GELU with a large eps.
TINY_MODERNBERTS: Mapping[str, TinyModernBert] = MappingProxyType(
    {
        "short_window": TinyModernBert(41, 30, 4, 3, 37, 101, 400, span=16),
        "biased": TinyModernBert(42, 40, 4, 5, 51, 333, 340, span=11, every=2, thetas=(90_000.0, 500.0), biases=True),
        "as_published": TinyModernBert(43, 36, 3, 9, 61, 517, 700, span=128),
        "tanh_gelu": TinyModernBert(44, 28, 3, 7, 45, 259, 330, span=41, activation="gelu_pytorch_tanh", eps=1e-3),
    }
)
