"""Activations of the reference in float64, the error function among them.

``erf`` is a Taylor series about the nearest of 6,145 grid points: numpy has none, and calling ``math.erf`` once per
element takes a second for a long text.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.tensor_ops import Activation, GeluKind

Float64: TypeAlias = npt.NDArray[np.float64]

#: Grid points per unit. Half a step is 2**-11, where the first term left out is below 2**-53.
_STEPS = 1024
#: From here on erf is 1 in float64.
_LIMIT = 6.0
#: Elements handled at a time, so that the intermediates stay in the cache.
_BLOCK = 1 << 14
#: The constants of the tanh form (Hendrycks and Gimpel, "Gaussian error linear units", 2016).
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715


@functools.cache
def _grid() -> tuple[Float64, Float64]:
    """The error function and its derivative at every grid point of [0, 6]."""
    points = [i / _STEPS for i in range(int(_LIMIT * _STEPS) + 1)]
    slope = 2.0 / math.sqrt(math.pi)
    values = np.array([math.erf(x) for x in points])
    return values, np.array([slope * math.exp(-x * x) for x in points])


def _by_blocks(function: Callable[[Float64], Float64], x: Float64) -> Float64:
    flat = np.ravel(x)
    out = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        out[start : start + _BLOCK] = function(flat[start : start + _BLOCK])
    return out.reshape(x.shape)


def erf(x: Float64) -> Float64:
    """The error function of every element, within 3e-16."""
    return _by_blocks(_erf_block, x)


def _erf_block(x: Float64) -> Float64:
    """Four terms of the series; the derivatives of erf are Hermite polynomials times its slope."""
    values, slopes = _grid()
    # fmin, not minimum: NaN must not become an index. It comes back out as NaN below.
    size = np.fmin(np.abs(x), _LIMIT)
    nearest = np.rint(size * _STEPS)
    index = nearest.astype(np.intp)
    p = nearest / _STEPS
    d = size - p
    pp = p * p
    cubic = (2.0 * pp - 1.0) / 3.0
    quartic = p * (3.0 - 2.0 * pp) / 6.0
    series = d * (1.0 + d * (-p + d * (cubic + d * quartic)))
    result: Float64 = np.copysign(values[index] + slopes[index] * series, x)
    result[np.isnan(x)] = np.nan
    return result


def _gelu_block(x: Float64) -> Float64:
    return 0.5 * x * (1.0 + _erf_block(x * math.sqrt(0.5)))


def gelu(x: Float64, kind: GeluKind) -> Float64:
    """Gaussian error linear unit, exact or by the tanh form."""
    if kind == "erf":
        return _by_blocks(_gelu_block, x)
    if kind == "tanh":
        return 0.5 * x * (1.0 + np.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))
    raise ValueError(f"gelu kind {kind!r} is not one of erf, tanh")


def silu(x: Float64) -> Float64:
    """``x · sigmoid(x)``, by the exponential of a number that is never positive."""
    small = np.exp(-np.abs(x))
    return x * np.where(x >= 0.0, 1.0, small) / (1.0 + small)


def activate(x: Float64, act: Activation | None) -> Float64:
    """``act`` by its name; None leaves ``x`` as it is."""
    if act is None:
        return x
    if act == "gelu":
        return gelu(x, "erf")
    if act == "gelu_tanh":
        return gelu(x, "tanh")
    if act == "silu":
        return silu(x)
    if act == "tanh":
        return np.tanh(x)
    if act == "relu":
        return np.maximum(x, 0.0)
    raise ValueError(f"activation {act!r} is not one of gelu, gelu_tanh, silu, tanh, relu")
