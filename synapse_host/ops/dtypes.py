"""Element types of activations and weights, and the rounding numpy lacks for bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.tolerances import UNIT_ROUNDOFF

if TYPE_CHECKING:
    from synapse_host.hookspecs import DType

Float32: TypeAlias = npt.NDArray[np.float32]

__all__ = ["UNIT_ROUNDOFF", "bf16_bits", "f32_from_bf16", "rounded"]


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
