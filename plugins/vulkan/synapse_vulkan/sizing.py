"""Whether a model's weights fit the device, known from their shapes before one of them is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey
from synapse_host.owned_engine.loading import WayOut
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_vulkan.binding import DeviceMemoryFull
from synapse_vulkan.device import Buffer
from synapse_vulkan.recording import Stored
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.segment_recording import record_segment
from synapse_vulkan.weight_memory import Float32, WeightMemory

#: Spread over a shape they take no memory.
_ZERO, _HALF_ZERO = np.zeros((), np.float32), np.zeros((), np.float16)


def require_room(runtime: Runtime, shapes: CheckpointWeights, settings: ModelSettings, way_out: WayOut) -> None:
    """Refuse a model whose weights pass what is left of the device's memory; what rows need beside them is not counted.

    Raises:
        DeviceMemoryFull: with both figures.
        ValueError: a tensor is missing or of another shape.

    """
    needed, room = weight_bytes(runtime, shapes, settings, way_out), runtime.device.room()
    if needed > room:
        half = "" if settings.dtype == "f16" else " (about half in f16)"
        raise DeviceMemoryFull(
            f"its weights take {needed >> 20} MB in {settings.dtype}{half} and {runtime.device.facts.name!r} has "
            f"{room >> 20} MB left of {runtime.device.facts.memory_mb} MB"
        )


def weight_bytes(runtime: Runtime, shapes: CheckpointWeights, settings: ModelSettings, way_out: WayOut) -> int:
    """Bytes of the blocks that the weights of a load take, found by recording its first row over shapes."""
    sizes = WeightSizes(runtime, shapes, settings)
    OwnedEngine(_SizedBackend(runtime, sizes), settings).warm_up(way_out.pooling, way_out.normalize, _ignored)
    return sizes.needed


class WeightSizes(WeightMemory):
    """The forms of the weights on a device, each of its size and none of them made; ``needed`` bytes of blocks."""

    def __init__(self, runtime: Runtime, shapes: CheckpointWeights, settings: ModelSettings) -> None:
        half = settings.dtype == "f16"
        super().__init__(runtime.device, shapes, max_tokens=settings.max_tokens, half=half)
        self.needed = 0

    def put(self, array: npt.NDArray[Any], *, texels: bool = False) -> Stored:
        block, offset = self._place(array.nbytes)
        return Stored(block, offset, array.nbytes, None)

    def _new_block(self, size: int) -> Buffer:
        self.needed += size
        return Buffer(None, None, size, size, 0)

    def _numbers(self, entry: StoredTensor) -> Float32:
        return np.broadcast_to(_ZERO, entry.shape)

    def _filled(self, array: Float32, shape: tuple[int, ...]) -> Float32:
        return np.broadcast_to(_ZERO, shape)

    def _stored_form(self, entry: StoredTensor, array: Float32) -> npt.NDArray[Any]:
        return np.broadcast_to(_HALF_ZERO if self.half else _ZERO, array.shape)


class _SizedBackend:
    """Records segments as they are recorded to be run, and runs none."""

    static_shapes = True

    def __init__(self, runtime: Runtime, sizes: WeightSizes) -> None:
        self._runtime = runtime
        self._sizes = sizes

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        record_segment(key, build, self._sizes, self._runtime)
        return _nothing

    def between_segments(self) -> None: ...

    def close(self) -> None: ...


def _nothing(*given: Any, **named: Any) -> None:
    """A segment that was not run leaves nothing."""


def _ignored(completed: int, phase: Any, token_ids: Any = ()) -> None:
    """Nobody waits for a size."""
