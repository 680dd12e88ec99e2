"""Element types of activations and weights, and the rounding numpy lacks for bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

Float32: TypeAlias = npt.NDArray[np.float32]

#: Largest relative error of rounding once: half the spacing of 24, 11 and 8 significant bits (IEEE 754; bfloat16 keeps
#: the upper half of a float32).
UNIT_ROUNDOFF: Mapping[DType, float] = MappingProxyType({"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8})


def bf16_bits(x: Float32) -> npt.NDArray[np.uint16]:
    """The bfloat16 nearest to each finite value, ties to even, as its 16 bits."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    # Half of the dropped part, less one where the kept part is even, carries exactly when rounding up is right.
    rounded: npt.NDArray[np.uint16] = ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)
    return rounded


def f32_from_bf16(bits: npt.NDArray[np.uint16]) -> Float32:
    """The float32 of each bfloat16, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(x: Float32, dtype: DType) -> Float32:
    """``x`` rounded to ``dtype`` and held as float32 again."""
    if dtype == "bf16":
        return f32_from_bf16(bf16_bits(x))
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float32)
    return x.astype(np.float32)
