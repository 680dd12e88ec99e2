"""Attention and rotary positions on MLX arrays.

``mx.fast.scaled_dot_product_attention`` does the work, on tiles of queries and the keys they may see: where MLX has no
fused kernel for the width of a head it would otherwise hold every score at once. ``mx.fast.rope`` is not used: it makes
its angles in float32 on the device and is off by 7e-5 at position 512 and by 1.5e-3 at 8,192, where a table made in
float64 on the host stays within 5e-7.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_owned_metal.runtime import mx

Array: TypeAlias = Any

#: Scores of one tile of one head; tiles are cut so that there are about this many.
TILE_SCORES = 1 << 21
_LONGEST_TILE, _SHORTEST_TILE = 1024, 16
#: Shortest query block of the banded form; a shorter window would make blocks too small to multiply well.
_SHORTEST_BLOCK = 16


@dataclass(slots=True)
class Masks:
    """Boolean masks of one recording by what they depend on, so that every layer shares them."""

    made: dict[Hashable, Array] = field(default_factory=dict)

    def get(self, key: Hashable, make: Any) -> Array:
        """The mask of ``key``, made by ``make`` when it is asked for the first time."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees: below ``start + counts``, not after itself when causal, within the window."""

    counts: Array
    start: int
    causal: bool
    window: int | None


def rope_angles(theta: float, d: int, scaling: float | None, positions: int) -> npt.NDArray[np.float32]:
    """Cosine and sine of every position, [2, positions, d / 2]; ``scaling`` divides the position."""
    rates = np.power(float(theta), -np.arange(0, d, 2, dtype=np.float64) / d)
    angles = np.outer(np.arange(positions, dtype=np.float64) / (scaling or 1.0), rates)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def rotate(h: Array, table: Array, start: int) -> Array:
    """Rotate the pair (i, i + D/2) of each position ``start + s`` of ``h`` [B, N, S, D], in float32."""
    cos, sin = table[:, start : start + h.shape[2]]
    low, high = mx.split(h.astype(mx.float32), 2, axis=-1)
    return mx.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(h.dtype)


def tile_length(keys: int) -> int:
    """Queries of one tile against ``keys`` keys."""
    return max(_SHORTEST_TILE, min(_LONGEST_TILE, TILE_SCORES // keys))


def tiled(q: Array, k: Array, v: Array, sight: Sight, scale: float, masks: Masks) -> Array:
    """Every query against the keys it may see, a tile of queries at a time."""
    queries, keys = q.shape[2], k.shape[2]
    tile = tile_length(keys)
    parts = []
    for first in range(0, queries, tile):
        last = min(first + tile, queries)
        low, high = _span(sight, first, last, keys)
        mask = masks.get(
            ("tile", sight.causal, sight.window, first, last, low, high),
            lambda span=(first, last, low, high): _tile_mask(sight, *span),
        )
        parts.append(_attend(q[:, :, first:last], k[:, :, low:high], v[:, :, low:high], scale, mask))
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)


def banded(q: Array, k: Array, v: Array, sight: Sight, scale: float, masks: Masks) -> Array:
    """Query blocks of one window's length against three key blocks: the block before, their own and the next.

    For rows without a cache only. Queries are filled up to whole blocks and cut back at the end.
    """
    rows, heads, length, d = q.shape
    size = max(sight.window or 0, _SHORTEST_BLOCK)
    blocks = -(-length // size)
    fill = blocks * size - length
    queries = _in_blocks(q, 0, fill, size)
    near_keys, near_values = (_three_blocks(_in_blocks(each, size, fill + size, size), blocks) for each in (k, v))
    mask = masks.get(("band", sight.causal, sight.window), lambda: _band_mask(sight, rows, blocks, size))
    context = _attend(queries, near_keys, near_values, scale, mask)
    joined = context.reshape(rows, blocks, heads, size, d).transpose(0, 2, 1, 3, 4)
    return joined.reshape(rows, heads, blocks * size, d)[:, :, :length]


def _attend(q: Array, k: Array, v: Array, scale: float, mask: Array | str | None) -> Array:
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def _span(sight: Sight, first: int, last: int, keys: int) -> tuple[int, int]:
    """The keys [low, high) that queries ``first`` up to ``last`` may see between them, whatever the counts."""
    begin, end = sight.start + first, sight.start + last
    low = 0 if sight.window is None else max(0, begin - sight.window)
    high = keys if not sight.causal else min(keys, end)
    if sight.window is not None:
        high = min(high, end + sight.window)
    return min(low, high - 1), high


def _tile_mask(sight: Sight, first: int, last: int, low: int, high: int) -> Array | str:
    """[B, 1, 1, T] where every query sees the same keys, the word "causal", or [B, 1, S, T].

    A valid query at position p sees no key past p when causal, and p is below the row's count: counts then add nothing.
    """
    if sight.causal and sight.window is None and high == sight.start + last:
        return "causal"
    places = mx.arange(low, high)
    seen = (places < (sight.counts + sight.start)[:, None])[:, None, None, :]
    if not sight.causal and sight.window is None:
        return seen
    distance = mx.arange(sight.start + first, sight.start + last)[:, None] - places
    return seen & _within(distance, sight)


def _within(distance: Array, sight: Sight) -> Array:
    """Conditions on query position minus key position."""
    inside = distance >= 0 if sight.causal else mx.ones(distance.shape, dtype=mx.bool_)
    return inside if sight.window is None else inside & (mx.abs(distance) <= sight.window)


def _band_mask(sight: Sight, rows: int, blocks: int, size: int) -> Array:
    """[B · blocks, 1, size, 3 · size]: key column c of block b is position (b - 1) · size + c."""
    near = mx.arange(-size, 2 * size)
    places = mx.arange(0, blocks * size, size)[:, None] + near
    real = (places >= 0) & (places < sight.counts[:, None, None])
    near_enough = _within(mx.arange(size)[:, None] - near, sight)
    seen = real[:, :, None, :] & near_enough
    return seen.reshape(rows * blocks, 1, size, 3 * size)


def _in_blocks(x: Array, before: int, after: int, size: int) -> Array:
    """[B, N, S, D] with zeros put before and after, as [B · blocks, N, size, D]."""
    padded = mx.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])
    rows, heads, length, d = padded.shape
    parted = padded.reshape(rows, heads, length // size, size, d).transpose(0, 2, 1, 3, 4)
    return parted.reshape(rows * (length // size), heads, size, d)


def _three_blocks(x: Array, blocks: int) -> Array:
    """For each of ``blocks`` blocks the keys of the one before, itself and the next: [B · blocks, N, 3 · size, D]."""
    heads, size, d = x.shape[1:]
    by_row = x.reshape(-1, blocks + 2, heads, size, d)
    near = mx.concatenate([by_row[:, shift : shift + blocks] for shift in range(3)], axis=3)
    return near.reshape(-1, heads, 3 * size, d)
