"""What transformers computed for the tiny models (scripts/make_encoder_fixtures.py), for tests of any backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import Pooling
from synapse_host.testing.engine_runs import TokenIds, batch_of, ignore_progress
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS
from synapse_host.testing.models.tiny_encoders import TINY_XLM_ROBERTAS
from synapse_host.testing.models.tiny_models import TinyModel
from synapse_host.testing.models.tiny_modernbert import TINY_MODERNBERTS

#: The poolings every model was recorded with.
POOLINGS: tuple[Pooling, ...] = ("mean", "cls")
_MODELS: Mapping[str, Mapping[str, TinyModel]] = MappingProxyType(
    {"xlm_roberta": TINY_XLM_ROBERTAS, "modernbert": TINY_MODERNBERTS}
)
#: Every recorded model as family/name.
RECORDED: tuple[str, ...] = tuple(f"{family}/{name}" for family, models in _MODELS.items() for name in models)


@dataclass(frozen=True, slots=True)
class RecordedEncoder:
    """A tiny encoder, its rows of token ids and the vectors transformers gave them, float32 and float64 [n, hidden]."""

    model: TinyModel
    rows: list[TokenIds]
    f32: Mapping[str, npt.NDArray[np.float32]]
    f64: Mapping[str, npt.NDArray[np.float64]]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row) for row in self.rows)


def recorded_encoder(fixtures: Path, name: str) -> RecordedEncoder:
    """The recording called ``name`` (one of ``RECORDED``) in the folder ``fixtures``."""
    family, _, model = name.partition("/")
    with np.load(fixtures / f"tiny_{family}_reference.npz") as file:
        held = {key: file[f"{model}/{key}"] for key in ("ids", "lengths", *_vector_keys())}
    rows = np.split(held["ids"].astype(np.int32), np.cumsum(held["lengths"])[:-1])
    return RecordedEncoder(
        _MODELS[family][model],
        rows,
        {pooling: held[f"{pooling}_f32"] for pooling in POOLINGS},
        {pooling: held[f"{pooling}_f64"] for pooling in POOLINGS},
    )


@dataclass(frozen=True, slots=True)
class RecordedPairs:
    """A cross-encoder, pairs of texts as rows of token ids, and transformers' logits in float32 and float64 [n]."""

    model: TinyModel
    rows: list[TokenIds]
    f32: npt.NDArray[np.float32]
    f64: npt.NDArray[np.float64]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row) for row in self.rows)


def recorded_pairs(fixtures: Path, name: str) -> RecordedPairs:
    """The recording called ``name`` (a key of ``CROSS_ENCODERS``) in the folder ``fixtures``."""
    with np.load(fixtures / "tiny_cross_encoder_reference.npz") as file:
        ids, lengths, single, double = (file[f"{name}/{key}"] for key in ("ids", "lengths", "logits_f32", "logits_f64"))
    rows = np.split(ids.astype(np.int32), np.cumsum(lengths)[:-1])
    return RecordedPairs(CROSS_ENCODERS[name], rows, single, double)


def embedded(plugin: Any, model: Any, rows: list[TokenIds], pooling: Pooling) -> npt.NDArray[np.float32]:
    """Unit vectors of ``rows`` by a loaded model."""
    vectors: npt.NDArray[np.float32] = plugin.synapse_embed(model, batch_of(rows, pooling), ignore_progress)
    return vectors


def _vector_keys() -> list[str]:
    return [f"{pooling}_{dtype}" for pooling in POOLINGS for dtype in ("f32", "f64")]
