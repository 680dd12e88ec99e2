"""Attention, rotary positions and the key-value cache of the reference.

Attention visits one head of one row and a tile of queries at a time, and of the keys only those some query of the
tile may see: memory grows with S · tile, never with B · N · S · S.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]

#: Queries of one tile.
TILE = 128
#: Stands for "not visible" before the softmax; finite, so that a row that sees nothing has no NaN.
_HIDDEN = -1e30


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which keys query ``i`` may see: below ``limit``, not after itself when causal, within ``window``."""

    limit: int
    causal: bool
    window: int | None

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The keys [low, high) that queries ``first``..``last`` may see between them."""
        low = 0 if self.window is None else max(0, first - self.window)
        high = self.limit
        if self.causal:
            high = min(high, last + 1)
        if self.window is not None:
            high = min(high, last + self.window + 1)
        return min(low, high), high

    def mask(self, queries: npt.NDArray[np.intp], keys: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """True where the query of the row sees the key of the column."""
        distance = queries[:, None] - keys[None, :]
        seen = np.ones(distance.shape, dtype=np.bool_)
        if self.causal:
            seen &= distance >= 0
        if self.window is not None:
            seen &= np.abs(distance) <= self.window
        return seen


def attend(q: Float32, k: Float32, v: Float32, start: int, scale: float, rule: Visibility, out: Float32) -> None:
    """Softmax attention of one head of one row into ``out`` [S, D]; query ``s`` is at position ``start + s``.

    A query that sees no key gets zeros.
    """
    keys, values = k.astype(np.float64), v.astype(np.float64)
    for first in range(0, q.shape[0], TILE):
        tile = slice(first, min(first + TILE, q.shape[0]))
        places = np.arange(start + tile.start, start + tile.stop)
        low, high = rule.span(start + tile.start, start + tile.stop - 1)
        scores = (q[tile].astype(np.float64) @ keys[low:high].T) * scale
        out[tile] = _weights(scores, rule.mask(places, np.arange(low, high))) @ values[low:high]


def _weights(scores: Float64, seen: npt.NDArray[np.bool_]) -> Float64:
    if not scores.shape[1]:
        return scores
    scores = np.where(seen, scores, _HIDDEN)
    weights: Float64 = np.exp(scores - scores.max(axis=1, keepdims=True)) * seen
    total = weights.sum(axis=1, keepdims=True)
    weights /= np.where(total > 0.0, total, 1.0)
    return weights


def rotate(h: Float32, table: Float32, start: int) -> Float32:
    """Rotate the pair (i, i + D/2) of each position by its angle."""
    half = h.shape[-1] // 2
    cos, sin = table[:, start : start + h.shape[2]]
    low, high = h[..., :half], h[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


@dataclass(slots=True)
class ReferenceCache:
    """Keys and values of one decoding session by layer. Arrays are replaced, never written into."""

    layers: dict[int, tuple[Float32, Float32]] = field(default_factory=dict)

    def append(self, layer: int, k: Float32, v: Float32, start: int) -> tuple[Float32, Float32]:
        """Keep the first ``start`` positions of ``layer`` and put ``k`` and ``v`` after them.

        Raises ``ValueError`` when fewer than ``start`` are cached.
        """
        held = self.layers.get(layer)
        cached = 0 if held is None else held[0].shape[2]
        if cached < start:
            raise ValueError(f"kv_append: layer {layer} holds {cached} positions, the batch starts at {start}")
        if held is not None and start:
            k = np.concatenate([held[0][:, :, :start], k], axis=2)
            v = np.concatenate([held[1][:, :, :start], v], axis=2)
        self.layers[layer] = (k, v)
        return k, v
