"""Attention and rotary positions as recorded graphs, masks included.

Masks are finite everywhere: a padded query may see nothing, and minus infinity would make its row NaN. Nothing of a
position is computed in floating point in the graph; angles are constants made in float64, because a compiler that
runs the graph in bfloat16 would round positions above 256. Lengths are read off the ids, never off an activation: a
second reader of an activation keeps the compiler from fusing it, in the first layer only, which would move bits between
segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.tensor_ops import Batch
from synapse_owned_cpu import nodes
from synapse_owned_cpu.nodes import out
from synapse_owned_cpu.runtime import opset

Out: TypeAlias = Any
#: Masks of one recording by what they depend on, so that every layer shares them.
Masks: TypeAlias = dict[object, Out]

#: Added to a score that must not count: its weight underflows to exactly zero in f32 and bf16.
_HIDDEN = -1e30
#: Shortest query block of the banded form; a shorter window would make blocks too small to multiply well.
_SHORTEST_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Sight:
    """Which keys a query sees: below the row's count, not after itself when causal, within the window."""

    batch: Batch
    causal: bool
    window: int | None


def rope_angles(theta: float, d: int, scaling: float | None, positions: int) -> npt.NDArray[np.float32]:
    """Cosine and sine of every position, [2, positions, d / 2]; ``scaling`` divides the position."""
    rates = np.power(float(theta), -np.arange(0, d, 2, dtype=np.float64) / d)
    angles = np.outer(np.arange(positions, dtype=np.float64) / (scaling or 1.0), rates)
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def rotate(h: Out, cos: Out, sin: Out) -> Out:
    """Rotate the pair (i, i + D/2) of every position of ``h`` [B, N, S, D] by angles [1, S, D / 2]."""
    low, high = opset.split(h, nodes.integer(-1), 2).outputs()
    left = opset.subtract(opset.multiply(low, cos), opset.multiply(high, sin))
    right = opset.add(opset.multiply(high, cos), opset.multiply(low, sin))
    return out(opset.concat([left, right], -1))


def shared_heads(x: Out, heads: int) -> Out:
    """Repeat the key heads of ``x`` [B, Nk, T, D] so that ``heads`` query heads each find their own."""
    held, size = nodes.static(x, 1), nodes.static(x, 3)
    if held == heads:
        return x
    repeated = opset.tile(nodes.spread(x, 2), nodes.integers(1, 1, heads // held, 1, 1))
    return out(opset.reshape(repeated, nodes.integers(0, heads, -1, size), True))


def full(q: Out, k: Out, v: Out, sight: Sight, scale: float, masks: Masks) -> Out:
    """Every query against every key, under a mask of [B, 1, 1 or S, T]."""
    key = ("full", sight.causal, sight.window)
    if key not in masks:
        masks[key] = _full_mask(sight)
    return _attend(q, k, v, masks[key], scale)


def banded(q: Out, k: Out, v: Out, sight: Sight, scale: float, masks: Masks) -> Out:
    """Query blocks of one window's length against three key blocks: the block before, their own and the next.

    For rows without a cache only. Queries are filled up to whole blocks and cut back at the end.
    """
    size = max(sight.window or 0, _SHORTEST_BLOCK)
    positions = nodes.length(sight.batch.ids, 1)
    blocks = out(opset.divide(nodes.plus(positions, size - 1), nodes.integer(size)))
    filled = out(opset.subtract(opset.multiply(blocks, nodes.integer(size)), positions))
    key = ("band", sight.causal, sight.window)
    if key not in masks:
        masks[key] = _band_mask(blocks, size, sight)
    queries = _in_blocks(q, nodes.integers(0), filled, size)
    keys, values = (_three_blocks(each, filled, blocks, size) for each in (k, v))
    context = _attend(queries, keys, values, masks[key], scale)
    n, d = nodes.static(q, 1), nodes.static(q, 3)
    return nodes.cut(out(opset.reshape(context, nodes.integers(0, n, -1, d), True)), 0, positions, axis=2)


def _attend(q: Out, k: Out, v: Out, mask: Out, scale: float) -> Out:
    return out(opset.scaled_dot_product_attention(q, k, v, mask, nodes.real(scale), False))


def _hidden_where_false(seen: Out) -> Out:
    return out(opset.select(seen, nodes.real(0.0), nodes.real(_HIDDEN)))


def _all(conditions: list[Out]) -> Out:
    seen, *others = conditions
    for condition in others:
        seen = out(opset.logical_and(seen, condition))
    return seen


def _within(distance: Out, sight: Sight) -> list[Out]:
    """Conditions on query position minus key position."""
    conditions = []
    if sight.causal:
        conditions.append(out(opset.greater_equal(distance, nodes.integer(0))))
    if sight.window is not None:
        conditions.append(out(opset.less_equal(opset.absolute(distance), nodes.integer(sight.window))))
    return conditions


def _full_mask(sight: Sight) -> Out:
    queries = nodes.length(sight.batch.ids, 1)
    key_places = nodes.spread(nodes.count_up(nodes.plus(queries, sight.batch.start)), 0, 1, 2)
    limits = nodes.spread(nodes.plus(sight.batch.counts, sight.batch.start), 1, 2, 3)
    query_places = nodes.spread(nodes.plus(nodes.count_up(queries), sight.batch.start), 0, 1, 3)
    distance = out(opset.subtract(query_places, key_places))
    return _hidden_where_false(_all([out(opset.less(key_places, limits)), *_within(distance, sight)]))


def _band_mask(blocks: Out, size: int, sight: Sight) -> Out:
    """[B, 1, blocks, size, 3 · size]: key column c of block b is position (b - 1) · size + c."""
    starts = out(opset.multiply(nodes.spread(nodes.count_up(blocks), 0, 1, 3, 4), nodes.integer(size)))
    query = out(opset.constant(np.arange(size, dtype=np.int32).reshape(1, 1, 1, size, 1)))
    key = out(opset.constant(np.arange(-size, 2 * size, dtype=np.int32).reshape(1, 1, 1, 1, 3 * size)))
    places = out(opset.add(starts, key))
    limits = nodes.spread(sight.batch.counts, 1, 2, 3, 4)
    inside = [out(opset.greater_equal(places, nodes.integer(0))), out(opset.less(places, limits))]
    return _hidden_where_false(_all([*inside, *_within(out(opset.subtract(query, key)), sight)]))


def _in_blocks(x: Out, before: Out, after: Out, size: int) -> Out:
    """[B, N, S, D] with zeros put before and after (i32[1] each), as [B, N, blocks, size, D]."""
    none = nodes.integers(0)
    begin, end = (opset.concat([none, none, amount, none], 0) for amount in (before, after))
    padded = opset.pad(x, begin, end, "constant", nodes.real(0.0))
    n, d = nodes.static(x, 1), nodes.static(x, 3)
    return out(opset.reshape(padded, nodes.integers(0, n, -1, size, d), True))


def _three_blocks(x: Out, filled: Out, blocks: Out, size: int) -> Out:
    """For each block the keys of the one before, itself and the next: [B, N, blocks, 3 · size, D]."""
    padded = _in_blocks(x, nodes.integers(size), nodes.plus(filled, size), size)
    parts = [nodes.cut(padded, shift, nodes.plus(blocks, shift), axis=2) for shift in range(3)]
    return out(opset.concat(parts, 3))
