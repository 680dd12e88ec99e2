"""Tiny cross-encoders made from a seed: the encoders of ``tiny_models`` with a classifier of one label on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from synapse_host.testing.models.tiny_models import Float32, TinyBert


@dataclass(frozen=True, slots=True)
class TinyBertReranker(TinyBert):
    """Sizes of a tiny BERT cross-encoder; its tensors carry the names of published ones, prefix included."""

    def config(self) -> dict[str, Any]:
        """Its config.json."""
        plain = TinyBert.config(self)
        return {
            **plain,
            "architectures": ["BertForSequenceClassification"],
            "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0},
        }

    def tensors(self) -> dict[str, Float32]:
        """Its weights by the names of published checkpoints."""
        encoder = {f"bert.{name}": tensor for name, tensor in TinyBert.tensors(self).items()}
        return encoder | {name: self._tensor(name, shape) for name, shape in self._head_shapes()}

    def _head_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        c = self.hidden
        yield "bert.pooler.dense.weight", (c, c)
        yield "bert.pooler.dense.bias", (c,)
        yield "classifier.weight", (1, c)
        yield "classifier.bias", (1,)


#: Cross-encoders whose scores by transformers are recorded under tests/fixtures, of sizes as odd as the encoders'.
TINY_RERANKERS: Mapping[str, TinyBertReranker] = MappingProxyType(
    {
        "one_layer": TinyBertReranker(31, hidden=36, layers=1, heads=3, intermediate=50, vocab=101, positions=40),
        "two_layers": TinyBertReranker(32, hidden=50, layers=2, heads=5, intermediate=77, vocab=333, positions=131),
        "three_layers": TinyBertReranker(33, hidden=66, layers=3, heads=11, intermediate=130, vocab=517, positions=700),
    }
)
