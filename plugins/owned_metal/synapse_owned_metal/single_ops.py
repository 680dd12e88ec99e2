"""Single operations on the device, as the operations' contract and the self-check ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.case_bench import HandleKind, OpsUnderTest
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.shape_policy import Regime
from synapse_owned_metal.key_value_cache import KeyValueCache
from synapse_owned_metal.mlx_ops import MlxOps, RopeTables
from synapse_owned_metal.mlx_types import MX_DTYPES
from synapse_owned_metal.runtime import mx


class SingleOps(OpsUnderTest):
    """Handles are arrays of the default device, in the lane's type."""

    def __init__(self, dtype: DType, regime: Regime = "full") -> None:
        self.dtype: DType = dtype
        self._regime: Regime = regime

    def make(self, weights: WeightSource, *, max_tokens: int) -> MlxOps:
        drawn: Any = _TypedWeights(weights, self.dtype)
        return MlxOps(drawn, RopeTables(max_tokens), dtype=self.dtype, regime=self._regime)

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Any:
        handle = mx.array(np.ascontiguousarray(array))
        return handle if array.dtype == np.int32 or kind == "logits" else handle.astype(MX_DTYPES[self.dtype])

    def from_handle(self, handle: Any, kind: HandleKind) -> npt.NDArray[Any]:
        return np.array(handle if kind == "picks" else handle.astype(mx.float32))

    def new_cache(self) -> KeyValueCache:
        return KeyValueCache()


class _TypedWeights:
    """A case's weights as arrays of the lane's type."""

    def __init__(self, source: WeightSource, dtype: DType) -> None:
        self._source, self._dtype = source, dtype

    def shaped(self, name: str, shape: Any) -> Any:
        """The tensor, held against ``shape``."""
        return mx.array(checked_tensor(self._source, name, shape)).astype(MX_DTYPES[self._dtype])
