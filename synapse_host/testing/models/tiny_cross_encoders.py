"""Tiny XLM-RoBERTa and ModernBERT cross-encoders made from a seed, and all those whose scores are recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from synapse_host.testing.models.tiny_encoders import TinyXlmRoberta
from synapse_host.testing.models.tiny_models import Float32, TinyBert, TinyModel, uniform_noise
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_rerankers import TINY_RERANKERS

_Shapes = Iterator[tuple[str, tuple[int, ...]]]
_ONE_LABEL = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
#: The token after each text of a recorded pair.
SEPARATOR = 3


@dataclass(frozen=True, slots=True)
class TinyXlmRobertaReranker:
    """The encoder with the classifier XLM-RoBERTa has in place of a pooler."""

    encoder: TinyXlmRoberta

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return self.encoder.config() | {"architectures": ["XLMRobertaForSequenceClassification"], **_ONE_LABEL}

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints, prefix included."""
        return _prefixed("roberta.", self.encoder) | _filled(self.encoder.seed, self._head_shapes())

    def _head_shapes(self) -> _Shapes:
        c = self.encoder.base.hidden
        for name, out in (("dense", c), ("out_proj", 1)):
            yield f"classifier.{name}.weight", (out, c)
            yield f"classifier.{name}.bias", (out,)


@dataclass(frozen=True, slots=True)
class TinyModernBertReranker:
    """The encoder with a prediction head and a classifier over rows pooled by ``pooling``."""

    encoder: TinyModernBert
    pooling: str
    activation: str = "gelu"

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return self.encoder.config() | {
            "architectures": ["ModernBertForSequenceClassification"],
            "classifier_activation": self.activation,
            "classifier_bias": self.encoder.biases,
            "classifier_pooling": self.pooling,
            **_ONE_LABEL,
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints, prefix included."""
        return _prefixed("model.", self.encoder) | _filled(self.encoder.seed, self._head_shapes())

    def _head_shapes(self) -> _Shapes:
        c = self.encoder.hidden
        yield "head.dense.weight", (c, c)
        yield "head.norm.weight", (c,)
        if self.encoder.biases:
            yield "head.dense.bias", (c,)
            yield "head.norm.bias", (c,)
        yield "classifier.weight", (1, c)
        yield "classifier.bias", (1,)


def _prefixed(prefix: str, encoder: TinyModel) -> dict[str, Float32]:
    return {f"{prefix}{name}": tensor for name, tensor in encoder.tensors().items()}


def _filled(seed: int, shapes: _Shapes) -> dict[str, Float32]:
    return {name: _tensor(f"{seed}/{name}", shape) for name, shape in shapes}


def _tensor(key: str, shape: tuple[int, ...]) -> Float32:
    noise = uniform_noise(key, int(np.prod(shape))).reshape(shape)
    if key.endswith("norm.weight"):
        return (1.0 + 0.25 * noise).astype(np.float32)
    scale = 0.5 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
    return (scale * noise).astype(np.float32)


#: Every cross-encoder recorded, as family/name.
CROSS_ENCODERS: Mapping[str, TinyModel] = MappingProxyType(
    {
        "bert/two_layers": TINY_RERANKERS["two_layers"],
        "bert/three_layers": TINY_RERANKERS["three_layers"],
        "xlm_roberta/two_layers": TinyXlmRobertaReranker(
            TinyXlmRoberta(TinyBert(51, 42, 2, 3, 59, 259, 300, layer_norm_eps=1e-5))
        ),
        "xlm_roberta/pad_four": TinyXlmRobertaReranker(
            TinyXlmRoberta(TinyBert(52, 35, 3, 5, 71, 101, 150, layer_norm_eps=1e-5), pad=4)
        ),
        "modernbert/mean": TinyModernBertReranker(TinyModernBert(53, 30, 4, 3, 37, 333, 400, span=22), "mean"),
        "modernbert/cls": TinyModernBertReranker(
            TinyModernBert(54, 36, 3, 9, 61, 101, 330, span=128, biases=True), "cls", "gelu_pytorch_tanh"
        ),
    }
)
