"""Every tensor operation on MLX's CPU device against the numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_owned_metal import attention
from synapse_owned_metal.key_value_cache import KeyValueCache
from synapse_owned_metal.mlx_ops import MlxOps, RopeTables
from synapse_owned_metal.mlx_types import MX_DTYPES
from synapse_owned_metal.runtime import mx

from synapse_host.hookspecs import DType
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.shape_policy import Regime
from synapse_host.testing.ops_contract import OP_CASES, OpCase, OpsMismatch, OpsUnderTest, check_op

DTYPES: tuple[DType, ...] = ("f32", "f16")
ATTENTION = [case for case in OP_CASES if case.op == "attention"]


class DrawnWeights:
    """A case's weights as arrays of the lane's type."""

    def __init__(self, source: WeightSource, dtype: DType) -> None:
        self.source, self.dtype = source, dtype

    def shaped(self, name: str, shape: Any) -> Any:
        return mx.array(checked_tensor(self.source, name, shape)).astype(MX_DTYPES[self.dtype])


class MlxUnderTest(OpsUnderTest):
    """Handles are arrays on the CPU device."""

    def __init__(self, dtype: DType, regime: Regime = "full") -> None:
        self.dtype: DType = dtype
        self.regime: Regime = regime

    def make(self, weights: WeightSource, *, max_tokens: int) -> MlxOps:
        mx.set_default_device(mx.cpu)
        return MlxOps(DrawnWeights(weights, self.dtype), RopeTables(max_tokens), dtype=self.dtype, regime=self.regime)

    def to_handle(self, array: npt.NDArray[Any], kind: str) -> Any:
        handle = mx.array(np.ascontiguousarray(array))
        return handle if array.dtype == np.int32 or kind == "logits" else handle.astype(MX_DTYPES[self.dtype])

    def from_handle(self, handle: Any, kind: str) -> npt.NDArray[Any]:
        return np.array(handle if kind == "picks" else handle.astype(mx.float32))

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operation_agrees_with_the_reference(case: OpCase, dtype: DType) -> None:
    check_op(MlxUnderTest(dtype), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_agrees_in_the_banded_regime(case: OpCase, dtype: DType) -> None:
    check_op(MlxUnderTest(dtype, "band"), case)


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_agrees_in_short_tiles(case: OpCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 16 queries, as a text of 131,072 tokens would get."""
    monkeypatch.setattr(attention, "TILE_SCORES", 1)
    check_op(MlxUnderTest("f32"), case)


def fused_rotation(h: Any, table: Any, start: int) -> Any:
    """The library's own rotation, at the base of the contract's cases."""
    return mx.fast.rope(h, h.shape[-1], traditional=False, base=10_000.0, scale=1.0, offset=start)


def test_the_rotation_of_the_library_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its angles are made in float32 on the device: it fails at far positions and passes at near ones."""
    monkeypatch.setattr(attention, "rotate", fused_rotation)
    refused = []
    for case in OP_CASES:
        if case.op in ("rope", "rope_table") and "another base" not in case.label:
            try:
                check_op(MlxUnderTest("f32"), case)
            except OpsMismatch:
                refused.append(str(case))
    assert refused == ["rope_table: far positions"]
