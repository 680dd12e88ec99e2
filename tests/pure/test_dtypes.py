from __future__ import annotations

import struct

import numpy as np
import pytest

from synapse_host.hookspecs import DType
from synapse_host.ops.dtypes import UNIT_ROUNDOFF, bf16_bits, f32_from_bf16, rounded


def nearest_bf16(value: float) -> float:
    """By comparing the two neighbours; ties go to the even bits."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    below, above = (
        struct.unpack("<f", struct.pack("<I", (b & 0xFFFF) << 16))[0] for b in (bits >> 16, (bits >> 16) + 1)
    )
    if abs(value - below) != abs(above - value):
        return below if abs(value - below) < abs(above - value) else above
    return below if (bits >> 16) % 2 == 0 else above


def test_bf16_rounds_to_the_nearest_and_ties_to_even() -> None:
    x = np.random.default_rng(5).standard_normal(500).astype(np.float32)
    ties = np.array([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, -1.0 - 2.0**-8, 0.0, -0.0, 1.0], np.float32)
    for value, found in zip(
        np.concatenate([x, ties]).tolist(), rounded(np.concatenate([x, ties]), "bf16"), strict=True
    ):
        assert float(found) == nearest_bf16(value)


def test_bf16_bits_of_known_numbers() -> None:
    bits = bf16_bits(np.array([1.0, -2.0, 3.140625], np.float32))
    assert bits.tolist() == [0x3F80, 0xC000, 0x4049]
    assert f32_from_bf16(bits).tolist() == [1.0, -2.0, 3.140625]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rounding_is_within_the_unit_and_done_once(dtype: DType) -> None:
    x = np.random.default_rng(6).standard_normal(1000)
    once = rounded(x.astype(np.float32), dtype)
    assert (np.abs(once - x) <= np.abs(x) * (UNIT_ROUNDOFF[dtype] + UNIT_ROUNDOFF["f32"])).all()
    assert rounded(once, dtype).tobytes() == once.tobytes()
