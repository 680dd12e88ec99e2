"""One model on a CUDA device: its weights there, segments run as they are written, texts read piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.weight_source import check_weight_shape
from synapse_host.owned_engine.decoder import Reading
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey, Hidden
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_owned_cuda.cuda_ops import Cache, CudaOps
from synapse_owned_cuda.device import Array, Device
from synapse_owned_cuda.request_steps import RequestSteps

Int32: TypeAlias = npt.NDArray[np.int32]
_STORED = {"f32": np.float32, "f16": np.float16}
#: Stored types that are numbers; what a checkpoint holds beside them (position ids) no family reads.
_FLOATING = ("F32", "F16", "BF16", "F64")


class DeviceWeights:
    """Every tensor of a checkpoint on the device, in the lane's type; the checkpoint is closed.

    Raises ``ValueError`` for a tensor of numbers the type cannot hold.
    """

    def __init__(self, weights: CheckpointWeights, device: Device, dtype: DType) -> None:
        self._arrays: dict[str, Array] = {}
        for name in list(weights):
            entry = weights.entry(name)
            if entry.dtype in _FLOATING:
                self._arrays[name] = device.to_device(_stored(name, entry, dtype))
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


def _stored(name: str, entry: StoredTensor, dtype: DType) -> npt.NDArray[Any]:
    read = entry.to_float32()
    with np.errstate(over="ignore"):
        stored = read.astype(_STORED[dtype])
    if dtype == "f16" and not np.array_equal(np.isinf(stored), np.isinf(read)):
        raise ValueError(f"tensor {name!r} holds numbers that f16 has no room for; load it as f32")
    return stored


class CudaBackend:
    """The segments of one model; any number of rows and any length share one executable.

    ``steps`` is told when the inputs of a call are on the device, while a request is computed.
    """

    static_shapes = False

    def __init__(self, weights: CheckpointWeights, device: Device, *, max_tokens: int, dtype: DType) -> None:
        self._device = device
        self._weights = DeviceWeights(weights, device, dtype)
        self._ops = CudaOps(self._weights, device, max_tokens=max_tokens)
        self.steps: RequestSteps | None = None

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        device, ops, ends = self._device, self._ops, key.segment.has_head

        def run(ids: Int32, counts: Int32, hidden: Hidden | None = None, kinds: Int32 | None = None) -> Any:
            batch = self._batch(ids, counts, kinds)
            found = build(ops, batch, hidden)
            if ends:
                return device.to_host(found)
            found = ops.settled(found)
            device.wait()
            return found

        return run

    def session(self, reading: Reading) -> CudaSession:
        """A text of which nothing is read yet."""
        return CudaSession(self._device, self._ops, reading)

    def between_segments(self) -> None:
        """CuPy's pool keeps what a segment freed for the next."""

    def close(self) -> None:
        self._weights.close()

    def _batch(self, ids: Int32, counts: Int32, kinds: Int32 | None) -> Batch:
        told = None if kinds is None else self._device.to_device(kinds)
        there = Batch(self._device.to_device(ids), self._device.to_device(counts), kinds=told)
        if self.steps is not None:
            self.steps.prepared()
        return there


class CudaSession:
    """One text, read piece by piece, and the keys and values of what was read of it."""

    def __init__(self, device: Device, ops: CudaOps, reading: Reading) -> None:
        self._device = device
        self._ops = ops
        self._reading = reading
        self._cache: Cache = {}
        self._read = 0

    def next_token(self, ids: Sequence[int]) -> int:
        """Read ``ids`` after all read before; the likeliest token to follow."""
        row, count = np.array([ids], dtype=np.int32), np.array([len(ids)], dtype=np.int32)
        batch = Batch(self._device.to_device(row), self._device.to_device(count), start=self._read)
        picks = self._device.to_host(self._reading(self._ops, batch, self._cache))
        self._read += len(ids)
        return int(picks[0, 0])
