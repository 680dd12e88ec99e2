"""What transformers computed for the tiny Qwen3 models (scripts/make_qwen3_fixtures.py), for tests of any backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.testing.engine_runs import TokenIds
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3

Float64: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecordedQwen3:
    """A tiny model, its rows of token ids and what transformers made of them.

    ``vectors`` [n, hidden] are the unit vectors of the last rows and ``logits`` [n, 2] those of the two token ids
    ``readout`` after them, each by the type transformers computed in. ``generated`` [p, 64] follows ``prompts``
    greedily; at every step the best logit is ahead of the second by 1e-3 and more.
    """

    model: TinyQwen3
    rows: list[TokenIds]
    vectors: dict[str, npt.NDArray[Any]]
    readout: tuple[int, int]
    logits: dict[str, npt.NDArray[Any]]
    prompts: list[TokenIds]
    generated: npt.NDArray[np.int32]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row) for row in self.rows)


def recorded_qwen3(fixtures: Path, name: str) -> RecordedQwen3:
    """The recording of ``TINY_QWEN3S[name]`` in the folder ``fixtures``."""
    with np.load(fixtures / "tiny_qwen3_reference.npz") as file:
        held = {key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{name}/")}
    yes, no = held["readout"].tolist()
    return RecordedQwen3(
        TINY_QWEN3S[name],
        _rows(held["ids"], held["lengths"]),
        {dtype: held[f"vectors_{dtype}"] for dtype in ("f32", "f64")},
        (yes, no),
        {dtype: held[f"logits_{dtype}"] for dtype in ("f32", "f64")},
        _rows(held["prompt_ids"], held["prompt_lengths"]),
        held["generated"].astype(np.int32),
    )


def _rows(ids: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[TokenIds]:
    return np.split(ids.astype(np.int32), np.cumsum(lengths)[:-1])
