"""Single operations on the device, as the operations' contract and the self-check ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.case_bench import HandleKind, OpsUnderTest
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_owned_cuda.cuda_ops import Cache, CudaOps
from synapse_owned_cuda.device import Array, Device
from synapse_owned_cuda.handles import Heads

_STORED = {"f32": np.float32, "f16": np.float16}


class SingleOps(OpsUnderTest):
    """Handles are arrays of ``device`` in the lane's type; heads lie position by position, as products leave them."""

    def __init__(self, device: Device, dtype: DType) -> None:
        self.dtype: DType = dtype
        self._device = device

    def make(self, weights: WeightSource, *, max_tokens: int) -> CudaOps:
        self._ops = CudaOps(_TypedWeights(weights, self._device, self.dtype), self._device, max_tokens=max_tokens)
        return self._ops

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Any:
        held = np.ascontiguousarray(array)
        held = held if array.dtype == np.int32 or kind == "logits" else held.astype(_STORED[self.dtype])
        if kind != "heads":
            return self._device.to_device(held)
        rows, n, length, d = held.shape
        whole = np.ascontiguousarray(held.swapaxes(1, 2)).reshape(rows, length, n * d)
        return Heads(self._device.to_device(whole), 0, n, d, length)

    def from_handle(self, handle: Any, kind: HandleKind) -> npt.NDArray[Any]:
        if isinstance(handle, Heads):
            rows, n, length, d = handle.shape
            merged = self._device.to_host(self._ops.merge_heads(handle)).astype(np.float32)
            return np.asarray(merged).reshape(rows, length, n, d).swapaxes(1, 2)
        found = np.asarray(self._device.to_host(self._ops.settled(handle)))
        return found if kind == "picks" else found.astype(np.float32)

    def new_cache(self) -> Cache:
        return {}


class _TypedWeights:
    """A case's weights as arrays of the lane's type."""

    def __init__(self, source: WeightSource, device: Device, dtype: DType) -> None:
        self._source, self._device, self._dtype = source, device, dtype

    def shaped(self, name: str, shape: Sequence[int]) -> Array:
        """The tensor, held against ``shape``."""
        return self._device.to_device(checked_tensor(self._source, name, shape).astype(_STORED[self._dtype]))
