"""Attention in a program of one fixed shape: queries in tiles, keys only where a query may look.

No operation holds more than ``SCORES_AT_ONCE`` scores of one head, so that a long row keeps within what the engine
takes, and no mask of S x S is ever stored. A window's mask is a band of one tile, shared by all tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_ane.mil import Var, constant, mb

#: Masks of one recording by what they depend on.
Masks: TypeAlias = dict[object, Var]

#: Rows up to here attend in one piece, and no piece of a longer one has more queries.
ONE_PIECE = 512
#: Scores of one head in one operation: 512 queries against 2,048 keys, or 128 against 8,192.
SCORES_AT_ONCE = 1 << 20
#: Queries of one tile under a window, and rows that need no cutting; keys of it are these and a window on both sides.
WINDOW_TILE = 256
#: Added to a score that must not count. Softmax takes the largest off first, so it underflows to zero.
_HIDDEN = -3e4


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees: those that are ``visible`` [1, 1, 1, S], not after itself when causal, in the window."""

    visible: Var
    causal: bool
    window: int | None


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries ``first`` up to ``stop`` look at keys ``begin`` up to ``end``."""

    first: int
    stop: int
    begin: int
    end: int


def rope_angles(theta: float, d: int, scaling: float | None, positions: npt.NDArray[np.float64]) -> tuple[Var, Var]:
    """Cosine and sine of every position as constants [1, 1, d / 2, S], made in float64."""
    rates = np.power(float(theta), -np.arange(0, d, 2, dtype=np.float64) / d)
    angles = np.outer(rates, positions / (scaling or 1.0))[None, None]
    return constant(np.cos(angles)), constant(np.sin(angles))


def rotated(h: Var, table: tuple[float, int, float | None], start: int, max_tokens: int) -> Var:
    """Rotate the pair (i, i + D/2) of every position of ``h`` [1, N, D, S]."""
    theta, d, scaling = table
    positions = np.minimum(np.arange(start, start + h.shape[3], dtype=np.float64), max_tokens - 1)
    cos, sin = rope_angles(theta, d, scaling, positions)
    low, high = mb.split(x=h, num_splits=2, axis=2)
    left = mb.sub(x=mb.mul(x=low, y=cos), y=mb.mul(x=high, y=sin))
    right = mb.add(x=mb.mul(x=high, y=cos), y=mb.mul(x=low, y=sin))
    return mb.concat(values=[left, right], axis=2)


def attended(q: Var, k: Var, v: Var, sight: Sight, scale: float, masks: Masks) -> Var:
    """The context of every query, [1, N, D, S]; ``k`` and ``v`` may have fewer heads."""
    n, groups, length = q.shape[1], k.shape[1], q.shape[3]
    # Several query heads read one key head: they stand beside each other, and the keys are broadcast.
    q = mb.reshape(x=mb.mul(x=q, y=np.float16(scale)), shape=[groups, n // groups, q.shape[2], length])
    k, v = (mb.reshape(x=each, shape=[groups, 1, each.shape[2], length]) for each in (k, v))
    unseen = _unseen(sight, masks)
    parts = [_tile_context(q, k, v, tile, unseen, sight, masks) for tile in tiles(length, sight)]
    context = parts[0] if len(parts) == 1 else mb.concat(values=parts, axis=3)
    return mb.reshape(x=context, shape=[1, n, v.shape[2], length])


def tiles(length: int, sight: Sight) -> list[_Tile]:
    """How the queries of a row are cut, and the keys each piece needs."""
    if length <= (ONE_PIECE if sight.window is None else WINDOW_TILE):
        return [_Tile(0, length, 0, length)]
    size = WINDOW_TILE if sight.window is not None else max(1, min(ONE_PIECE, SCORES_AT_ONCE // length))
    cut = []
    for first in range(0, length, size):
        stop = min(first + size, length)
        begin = 0 if sight.window is None else max(0, first - sight.window)
        end = length if sight.window is None else min(length, stop + sight.window)
        cut.append(_Tile(first, stop, begin, stop if sight.causal else end))
    return cut


def _unseen(sight: Sight, masks: Masks) -> Var:
    """0 where a key counts and a large negative number where it is padding, [1, 1, 1, S]."""
    key = ("unseen", sight.visible.name)
    if key not in masks:
        masks[key] = mb.mul(x=mb.sub(x=np.float16(1), y=sight.visible), y=np.float16(_HIDDEN))
    return masks[key]


def _tile_context(q: Var, k: Var, v: Var, tile: _Tile, unseen: Var, sight: Sight, masks: Masks) -> Var:
    queries = _positions(q, tile.first, tile.stop)
    keys, values, hidden = (_positions(each, tile.begin, tile.end) for each in (k, v, unseen))
    scores = mb.add(x=mb.matmul(x=queries, y=keys, transpose_x=True), y=hidden)
    weights = mb.softmax(x=_restricted(scores, tile, sight, masks), axis=-1)
    return mb.matmul(x=values, y=weights, transpose_y=True)


def _restricted(scores: Var, tile: _Tile, sight: Sight, masks: Masks) -> Var:
    """Scores with what causality and the window hide put out of sight."""
    if not sight.causal and sight.window is None:
        return scores
    if sight.window is None and tile.first > tile.begin:
        # Keys before the tile are seen by all of it; only the square of the tile itself needs a mask.
        past, own = mb.split(x=scores, split_sizes=[tile.first - tile.begin, tile.end - tile.first], axis=3)
        return mb.concat(values=[past, mb.add(x=own, y=_mask(0, tile, sight, masks))], axis=3)
    return mb.add(x=scores, y=_mask(tile.first - tile.begin, tile, sight, masks))


def _mask(before: int, tile: _Tile, sight: Sight, masks: Masks) -> Var:
    """[1, 1, queries, keys] where the first query stands ``before`` keys after the first key."""
    queries = tile.stop - tile.first
    keys = tile.end - tile.first + before
    key = (before, queries, keys, sight.causal, sight.window)
    if key not in masks:
        distance = (np.arange(queries)[:, None] + before) - np.arange(keys)[None, :]
        seen = np.ones_like(distance, dtype=bool)
        if sight.causal:
            seen &= distance >= 0
        if sight.window is not None:
            seen &= np.abs(distance) <= sight.window
        masks[key] = constant(np.where(seen, 0.0, _HIDDEN)[None, None])
    return masks[key]


def _positions(x: Var, first: int, stop: int) -> Var:
    if (first, stop) == (0, x.shape[3]):
        return x
    begin, end = [0, 0, 0, first], [*x.shape[:3], stop]
    return mb.slice_by_index(x=x, begin=begin, end=end)
