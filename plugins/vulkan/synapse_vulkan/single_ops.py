"""Single operations recorded and replayed on the device, as the self-check asks for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.case_bench import HandleKind, OpsUnderTest
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.weights import StoredTensor
from synapse_vulkan.arena import plan
from synapse_vulkan.attention_shape import shape_for
from synapse_vulkan.pace import Pace
from synapse_vulkan.recording import Outside, Recording, View, contiguous
from synapse_vulkan.replay import Places, Replay
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.vulkan_ops import RecordedCache, VulkanOps
from synapse_vulkan.weight_memory import DeviceWeight, WeightMemory

#: Bytes of the largest result of a case, with room.
_RESULT_BYTES = 1 << 20
#: So slow that a case is cut as the rows of a large model are.
_PACE = Pace(4e4)


class ReplayedSingly(OpsUnderTest):
    """Inputs are tensors on the device; reading a handle replays all that was recorded for its case.

    What a case holds on the device is given back when the next begins, and by ``close``.
    """

    def __init__(self, runtime: Runtime, dtype: DType) -> None:
        self.dtype: DType = dtype
        self._runtime = runtime
        self._memory: WeightMemory | None = None
        self._recording: Recording
        self._ops: VulkanOps

    def make(self, weights: WeightSource, *, max_tokens: int) -> VulkanOps:
        self.close()
        drawn: Any = _DrawnWeights(weights)
        self._memory = WeightMemory(self._runtime.device, drawn, max_tokens=max_tokens, half=self.dtype == "f16")
        self._recording = Recording()
        attention = shape_for(self._runtime.device.facts.kind)
        self._ops = VulkanOps(self._memory, self._recording, self._runtime.products, attention)
        return self._ops

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Any:
        assert self._memory is not None
        laid = array.transpose(0, 2, 1, 3) if kind == "heads" else array
        stored = self._memory.put(np.ascontiguousarray(laid))
        texts, positions = laid.shape[0], laid.shape[1] if laid.ndim > 1 else 1
        width = int(np.prod(laid.shape[2:]))
        return replace(contiguous(stored, texts, positions, width), heads=laid.shape[2] if kind == "heads" else None)

    def from_handle(self, handle: Any, kind: HandleKind) -> npt.NDArray[Any]:
        if isinstance(handle, DeviceWeight):
            return self._stored_rows(handle)
        if kind == "vectors":
            return self._run(handle, handle.texts * handle.width, np.float32).reshape(handle.texts, handle.width)
        # The result's memory is the host's too; that of the recording's own values need not be.
        out = contiguous(Outside("result"), handle.texts, handle.positions, handle.width)
        self._ops.copy(handle, out)
        values = self._run(out, out.rows * out.width, np.int32 if kind == "picks" else np.float32)
        if kind == "picks":
            return values.reshape(out.texts, out.positions)
        if kind != "heads":
            return values.reshape(out.texts, out.positions, out.width)
        heads = handle.heads or 1
        return values.reshape(out.texts, out.positions, heads, out.width // heads).transpose(0, 2, 1, 3)

    def new_cache(self) -> RecordedCache:
        return {}

    def close(self) -> None:
        """Give back what the last case holds on the device."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _stored_rows(self, weight: DeviceWeight) -> npt.NDArray[Any]:
        view, rows = self._ops.table_row(weight, 0), weight.plain_rows()
        whole = View(view.memory, 1, rows.rows, rows.width, 0, 0, rows.stride)
        stored: npt.NDArray[Any] = self.from_handle(whole, "rows")[0]
        return stored

    def _run(self, view: View, count: int, dtype: Any) -> npt.NDArray[Any]:
        device, recording = self._runtime.device, self._recording
        result = device.host_buffer(_RESULT_BYTES)
        for value in recording.values:
            value.last = len(recording.steps)
        layout = plan(recording.lives())
        arena = device.device_buffer(max(layout.size, 256))
        places = Places(arena, layout, {"result": (result, 0, result.size)})
        replay = Replay(device, self._runtime.kernels, recording, places, _PACE)
        try:
            replay.run()
            assert result.mapped is not None, "a host buffer is mapped"
            return np.frombuffer(result.mapped, dtype, count, 4 * view.offset).copy()
        finally:
            replay.close()
            device.free(arena)
            device.free(result)


class _DrawnWeights:
    """A case's weights as a checkpoint holds them."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    def shaped_entry(self, name: str, shape: Any) -> StoredTensor:
        """The tensor, held against ``shape``."""
        array = np.ascontiguousarray(checked_tensor(self._source, name, shape))
        return StoredTensor(name, "F32", array.shape, array.data.cast("B"))

    def close(self) -> None:
        """Nothing to forget."""
