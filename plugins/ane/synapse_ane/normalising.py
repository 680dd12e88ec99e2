"""Norms in half precision, where a square overflows from 256 on: numbers are brought near 1 before they are squared."""

from __future__ import annotations

import numpy as np

from synapse_ane.mil import Var, mb

#: Numbers are divided by their largest, but by no less than this: ``eps`` divided by its square must not overflow.
_LEAST_SCALE = np.float16(2.0**-8)
#: Below it a vector counts as zero and stays zero.
_TINY_LENGTH = np.float32(1e-30)


def by_root_mean_square(x: Var, axis: int, eps: float) -> Var:
    """``x / sqrt(mean(x²) + eps)`` over one axis.

    With y = x / m it is ``y / sqrt(mean(y²) + eps / m²)``, and every y is at most 1.
    """
    largest = mb.reduce_max(x=mb.abs(x=x), axes=[axis], keep_dims=True)
    scale = mb.maximum(x=largest, y=_LEAST_SCALE)
    near = mb.real_div(x=x, y=scale)
    mean = mb.reduce_mean(x=mb.mul(x=near, y=near), axes=[axis], keep_dims=True)
    # The root of eps over m, squared after: eps itself is below what half precision holds.
    small = mb.real_div(x=np.float16(np.sqrt(eps)), y=scale)
    total = mb.add(x=mean, y=mb.mul(x=small, y=small))
    return mb.mul(x=near, y=mb.rsqrt(x=total, epsilon=np.float16(2.0**-24)))


def to_unit_length(x: Var) -> Var:
    """``x / |x|`` over the channels of one pooled row, in float32; a zero row stays zero."""
    wide = mb.cast(x=x, dtype="fp32")
    length = mb.sqrt(x=mb.reduce_sum_square(x=wide, axes=[1], keep_dims=True))
    return mb.real_div(x=wide, y=mb.maximum(x=length, y=_TINY_LENGTH))
