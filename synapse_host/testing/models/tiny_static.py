"""Tiny tables of static embeddings, made from a seed as the other tiny models are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from synapse_host.families.static import TABLE
from synapse_host.testing.models.tiny_models import Float32, uniform_noise


@dataclass(frozen=True, slots=True)
class TinyStatic:
    """Sizes of a tiny table; every seed and size gives another model."""

    seed: int
    hidden: int
    vocab: int
    positions: int

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return {
            "architectures": ["StaticEmbedding"],
            "hidden_size": self.hidden,
            "max_position_embeddings": self.positions,
            "model_type": "static",
            "vocab_size": self.vocab,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its one tensor."""
        noise = uniform_noise(f"{self.seed}/{TABLE}", self.vocab * self.hidden)
        return {TABLE: noise.reshape(self.vocab, self.hidden).astype(np.float32)}
