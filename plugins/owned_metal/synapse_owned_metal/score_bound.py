"""Scores no kernel of MLX may be trusted with, found by the lengths of queries and keys.

MLX hides keys by a finite number. Which one, and in which type scores are held beside it, depends on the kernel, which
MLX chooses by width, length and release. A score that overflows, or comes near that number, loses to hidden keys: the
row comes out finite, and another text's. No score passes the product of the longest query and the longest key (Cauchy
and Schwarz), so heads where that is too large are made no number, which the worker then refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from synapse_host.hookspecs import DType
from synapse_owned_metal.runtime import mx

Array: TypeAlias = Any

#: Largest score by activation type. Half precision ends at 65,504, and hides by it where scores are half precision. In
#: float32 releases of MLX begin a maximum at -1e9, and past 1e8 neighbouring numbers are 8 apart.
LARGEST_SCORE: Mapping[DType, float] = {"f16": 2.0**15, "f32": 1e8}


def longest(x: Array) -> Array:
    """Square of the length of the longest of the vectors [B, N, S, D], float32 [B, N, 1, 1]; infinite for no number."""
    wide = x.astype(mx.float32)
    squares = (wide * wide).sum(axis=-1, keepdims=True)
    if squares.shape[2] == 1:
        return squares
    # Whether a maximum keeps what is no number depends on the device.
    return mx.where(squares < mx.inf, squares, mx.inf).max(axis=2, keepdims=True)


def bounded(context: Array, queries: Array, keys: Array, scale: float, dtype: DType) -> Array:
    """``context`` [B, N, S, D], no number in heads whose scores may pass what ``dtype`` allows.

    ``queries`` [B, N, 1, 1] and ``keys`` [B, Nk, 1, 1] are those of ``longest``; Nk divides N.
    """
    shared = queries.shape[1] // keys.shape[1]
    reach = queries * (mx.repeat(keys, shared, axis=1) if shared > 1 else keys)
    return mx.where(reach <= (LARGEST_SCORE[dtype] / scale) ** 2, context, mx.nan)
