"""The keys and values of one text being generated, in buffers that grow by steps.

A buffer that grew by one position for each token would be copied for each token.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from synapse_owned_metal.runtime import mx
from synapse_owned_metal.score_bound import longest

Array: TypeAlias = Any

#: Positions a buffer grows by.
STEP = 256


class KeyValueCache:
    """Buffers [B, N, capacity, D] by layer, capacity a multiple of ``STEP``."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Array, Array]] = {}
        self._held: dict[int, int] = {}
        self._longest: dict[int, Array] = {}

    def append(self, layer: int, k: Array, v: Array, start: int) -> tuple[Array, Array]:
        """Put ``k`` and ``v`` [B, N, S, D] after the first ``start`` positions; returns all keys and values so far.

        Raises ``ValueError`` when fewer than ``start`` are held.
        """
        held = self._held.get(layer, 0)
        if held < start:
            raise ValueError(f"kv_append: layer {layer} holds {held} positions, the batch starts at {start}")
        end = start + k.shape[2]
        old = self._layers.get(layer, (None, None))
        keys, values = (_put(buffer, new, start, end) for buffer, new in zip(old, (k, v), strict=True))
        self._layers[layer], self._held[layer] = (keys, values), end
        known, new = self._longest.get(layer), longest(k)
        self._longest[layer] = new if known is None else mx.maximum(known, new)
        return keys[:, :, :end], values[:, :, :end]

    def longest_key(self, layer: int) -> Array:
        """``longest`` of every key that was ever put into ``layer``."""
        return self._longest[layer]

    def arrays(self) -> list[Array]:
        """Every buffer, to be computed together with what was made of them."""
        return [*(buffer for pair in self._layers.values() for buffer in pair), *self._longest.values()]


def _put(buffer: Array | None, new: Array, start: int, end: int) -> Array:
    rows, heads, _, d = new.shape
    if buffer is None:
        buffer = mx.zeros((rows, heads, _capacity(end), d), dtype=new.dtype)
    elif end > buffer.shape[2]:
        more = _capacity(end) - buffer.shape[2]
        buffer = mx.concatenate([buffer, mx.zeros((rows, heads, more, d), dtype=new.dtype)], axis=2)
    buffer[:, :, start:end] = new
    return buffer


def _capacity(positions: int) -> int:
    return -(-positions // STEP) * STEP
