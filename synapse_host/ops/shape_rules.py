"""The shape rules of the operations, shared by the reference and the null ops.

A dimension is an int, or the name of a length a recording backend does not know yet (``"B"``, ``"S"``). Two lengths
agree when they are equal; a size of 1 stretches only on the batch and position axes. Every refusal is a
``ValueError`` that names the operation and the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]

#: Axes on which a size of 1 may stretch, by rank: Rows are [B, S, C], Heads are [B, N, S, D].
_STRETCHING_AXES = {3: (0, 1), 4: (0, 2)}


def broadcast(op: str, a: Sequence[Dim], b: Sequence[Dim]) -> Shape:
    """The shape of an elementwise ``op``; only B and S of size 1 stretch."""
    axes = _STRETCHING_AXES.get(len(a))
    if axes is None or len(a) != len(b):
        raise ValueError(f"{op}: shapes {tuple(a)} and {tuple(b)} are not two Rows or two Heads")
    return tuple(_stretched(op, a, b, axis, axis in axes) for axis in range(len(a)))


def _stretched(op: str, a: Sequence[Dim], b: Sequence[Dim], axis: int, may_stretch: bool) -> Dim:
    left, right = a[axis], b[axis]
    if left == right or (may_stretch and right == 1):
        return left
    if may_stretch and left == 1:
        return right
    raise ValueError(f"{op}: shapes {tuple(a)} and {tuple(b)} differ on axis {axis}; only B and S of size 1 stretch")


def same(op: str, a: Sequence[Dim], b: Sequence[Dim]) -> Shape:
    """The common shape of two handles that must be equal in every axis."""
    if tuple(a) != tuple(b):
        raise ValueError(f"{op}: shapes {tuple(a)} and {tuple(b)} must be equal")
    return tuple(a)


def rank(op: str, shape: Sequence[Dim], *allowed: int) -> Shape:
    """``shape`` itself, when its number of axes is one of ``allowed``."""
    if len(shape) not in allowed:
        wanted = " or ".join(str(n) for n in allowed)
        raise ValueError(f"{op}: a handle of {wanted} axes is needed, shape {tuple(shape)} has {len(shape)}")
    return tuple(shape)


def features(op: str, x: Sequence[Dim], weight: Sequence[Dim], axis: int = 0) -> None:
    """Axis ``axis`` of ``weight`` must be as long as the features of ``x``."""
    if len(weight) <= axis or weight[axis] != x[-1]:
        raise ValueError(f"{op}: weight {tuple(weight)} does not fit the {x[-1]} features of shape {tuple(x)}")


def vector(op: str, weight: Sequence[Dim], size: Dim) -> None:
    """``weight`` must be one axis of ``size``."""
    if tuple(weight) != (size,):
        raise ValueError(f"{op}: a vector of {size} values is needed, not shape {tuple(weight)}")


def half(op: str, size: Dim) -> int:
    """Half of an even feature count."""
    if not isinstance(size, int) or size < 2 or size % 2:
        raise ValueError(f"{op}: {size} features cannot be cut into two halves")
    return size // 2


def pieces(op: str, size: Dim, sizes: Sequence[int]) -> None:
    """``sizes`` must be positive and sum to the feature count."""
    if not sizes or min(sizes) < 1 or sum(sizes) != size:
        raise ValueError(f"{op}: sizes {tuple(sizes)} do not add up to {size} features")


def per_head(op: str, size: Dim, heads: int) -> int:
    """Features of one head."""
    if heads < 1 or not isinstance(size, int) or size % heads:
        raise ValueError(f"{op}: {size} features cannot be shared by {heads} heads")
    return size // heads


def row_index(op: str, rows: Dim, index: int) -> None:
    """``index`` must name a row of a table of ``rows`` rows."""
    if not isinstance(rows, int) or not 0 <= index < rows:
        raise ValueError(f"{op}: row {index} is outside a table of {rows} rows")


def attention(q: Sequence[Dim], k: Sequence[Dim], v: Sequence[Dim], window: int | None) -> int:
    """How many query heads read one key head; q, k and v are Heads."""
    for shape in (q, k, v):
        rank("attention", shape, 4)
    same("attention", k, v)
    heads, key_heads = q[1], k[1]
    if q[0] != k[0] or q[3] != k[3]:
        raise ValueError(f"attention: queries {tuple(q)} and keys {tuple(k)} differ in rows or head size")
    if not isinstance(heads, int) or not isinstance(key_heads, int) or heads % key_heads:
        raise ValueError(f"attention: {heads} query heads cannot share {key_heads} key heads")
    if window is not None and window < 0:
        raise ValueError(f"attention: window {window} is negative; use 0 or more, or None for no window")
    return heads // key_heads


def one_position(op: str, shape: Sequence[Dim]) -> None:
    """A pooled handle: Rows with S = 1."""
    if len(shape) != 3 or shape[1] != 1:
        raise ValueError(f"{op}: pooled rows [B, 1, C] are needed, not shape {tuple(shape)}; pool first")
