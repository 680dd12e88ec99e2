"""One model on a CUDA device: its weights there, and its segments run as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.weight_source import check_weight_shape
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey, Hidden
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_owned_cuda.cuda_ops import CudaOps
from synapse_owned_cuda.device import Array, Device

Int32: TypeAlias = npt.NDArray[np.int32]
_STORED = {"f32": np.float32, "f16": np.float16}
#: Stored types that are numbers; what a checkpoint holds beside them (position ids) no family reads.
_FLOATING = ("F32", "F16", "BF16", "F64")


class DeviceWeights:
    """Every tensor of a checkpoint on the device, in the lane's type; the checkpoint is closed."""

    def __init__(self, weights: CheckpointWeights, device: Device, dtype: DType) -> None:
        self._arrays: dict[str, Array] = {}
        for name in list(weights):
            entry = weights.entry(name)
            if entry.dtype in _FLOATING:
                self._arrays[name] = device.to_device(entry.to_float32().astype(_STORED[dtype]))
        weights.close()

    def shaped(self, name: str, shape: Sequence[int]) -> Array:
        """The array, held against the shape the config implies.

        Raises:
            ValueError: the checkpoint has no such tensor, or one of another shape; the message names both shapes.

        """
        found = self._arrays.get(name)
        if found is None:
            raise ValueError(f"the checkpoint has no tensor {name!r} of shape {tuple(shape)}; it is another model's")
        check_weight_shape(name, shape, found.shape)
        return found

    def close(self) -> None:
        """Forget every array."""
        self._arrays.clear()


class CudaBackend:
    """The segments of one model; any number of rows and any length share one executable."""

    static_shapes = False

    def __init__(self, weights: CheckpointWeights, device: Device, *, max_tokens: int, dtype: DType) -> None:
        self._device = device
        self._weights = DeviceWeights(weights, device, dtype)
        self._ops = CudaOps(self._weights, device, max_tokens=max_tokens)

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        device, ops, ends = self._device, self._ops, key.segment.has_head

        def run(ids: Int32, counts: Int32, hidden: Hidden | None = None, kinds: Int32 | None = None) -> Any:
            told = None if kinds is None else device.to_device(kinds)
            found = build(ops, Batch(device.to_device(ids), device.to_device(counts), kinds=told), hidden)
            if ends:
                return device.to_host(found)
            found = ops.settled(found)
            device.wait()
            return found

        return run

    def between_segments(self) -> None:
        """CuPy's pool keeps what a segment freed for the next."""

    def close(self) -> None:
        self._weights.close()
