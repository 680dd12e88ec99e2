"""Turns recorded segments into replayed commands the owned engine can call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.executables import Build, Executable, ExecutableKey, ReportingExecutable
from synapse_host.owned_engine.shape_policy import ROW_COUNTS, TOKEN_BUDGET
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_vulkan.arena import aligned, arena_size, plan
from synapse_vulkan.device import Buffer
from synapse_vulkan.device_facts import DeviceFacts
from synapse_vulkan.opening import open_runtime
from synapse_vulkan.recording import WORD, OutsideName, Recording
from synapse_vulkan.recordings import Recordings
from synapse_vulkan.replay import Places, Region, Replay
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.segment_recording import record_segment
from synapse_vulkan.weight_memory import WeightMemory

Int32: TypeAlias = npt.NDArray[np.int32]
Float32: TypeAlias = npt.NDArray[np.float32]


class VulkanBackend:
    """The executables of one model: one a shape, all over the same weights, arenas and mapped inputs.

    An executable is small; its recording, which holds what lies on the device for a shape, is kept in ``recordings``
    for as long as there is room and made anew where it was not.
    """

    static_shapes = True

    def __init__(self, runtime: Runtime, weights: CheckpointWeights, *, max_tokens: int, half: bool = False) -> None:
        self._runtime = runtime
        self._device = runtime.device
        self.weights = WeightMemory(self._device, weights, max_tokens=max_tokens, half=half)
        self.recordings = Recordings()
        self._tokens = max(TOKEN_BUDGET, max_tokens)
        self._memories: dict[tuple[str, int], Buffer] = {}
        self._closed = False

    def executable(self, key: ExecutableKey, build: Build) -> Executable:
        assert key.shape is not None, "an executable here has one shape"
        replayed = ReplayedSegment(self.recordings, key, lambda: self._record(key, build))
        # A tensor that is missing shows now.
        replayed.replay()
        return replayed

    def _record(self, key: ExecutableKey, build: Build) -> Recorded:
        """Run the family's code over operations that record, and make what it left ready to be replayed."""
        assert key.shape is not None, "an executable here has one shape"
        texts, positions = key.shape
        recorded = record_segment(key, build, self.weights, self._runtime)
        recording, made = recorded.recording, recorded.made
        outside: dict[OutsideName, Region] = self._inputs()
        if not recorded.leaves_hidden:
            outside["result"] = self._memory("result", WORD * made.texts * made.width)
        if recorded.takes_hidden or recorded.leaves_hidden:
            outside["hidden"] = self._memory("hidden", WORD * texts * positions * key.width)
        check_sizes(recording, self._device.facts, positions)
        layout = plan(recording.lives())
        arena = self._memory("arena", layout.size)[0]
        places = Places(arena, layout, outside)
        replay = Replay(self._device, self._runtime.kernels, recording, places, self._runtime.pace)
        return Recorded(replay, outside, None if recorded.leaves_hidden else made.width)

    def between_segments(self) -> None:
        """Arenas are shared by every executable, so nothing is held to give back."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.recordings.close()
        for buffer in self._memories.values():
            self._device.free(buffer)
        self._memories.clear()
        self.weights.close()

    def _inputs(self) -> dict[OutsideName, Region]:
        """Token ids, counts and kinds, mapped; the same for every executable."""
        tokens, counts = aligned(WORD * self._tokens), aligned(WORD * max(ROW_COUNTS))
        buffer = self._memory("inputs", 2 * tokens + counts)[0]
        return {
            "ids": (buffer, 0, tokens),
            "kinds": (buffer, tokens, tokens),
            "counts": (buffer, 2 * tokens, counts),
        }

    def _memory(self, name: str, needed: int) -> Region:
        """The buffer of that name and of the size class of ``needed`` bytes."""
        size = arena_size(needed)
        if (name, size) not in self._memories:
            make = self._device.device_buffer if name in ("arena", "hidden") else self._device.host_buffer
            self._memories[name, size] = make(size)
        return self._memories[name, size], 0, aligned(needed)


def check_sizes(recording: Recording, facts: DeviceFacts, positions: int) -> None:
    """Refuse, with invalid_request, rows whose values or workgroups pass a limit of the device."""
    limit = min(facts.limits.storage_bytes, 4 * WORD * facts.limits.texels)
    largest = WORD * max(value.size for value in recording.values)
    if largest > limit:
        raise PluginError(
            "invalid_request",
            f"rows of {positions} tokens need {largest} bytes in one buffer and {facts.name!r} takes {limit}; send "
            "shorter ones",
        )
    groups = max(max(step.groups) for step in recording.steps)
    if groups > facts.limits.groups:
        raise PluginError(
            "invalid_request",
            f"rows of {positions} tokens need {groups} workgroups and {facts.name!r} runs {facts.limits.groups}; send "
            "shorter ones",
        )


class NewBackends:
    """Backends of a load in progress."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.made: list[VulkanBackend] = []

    def make(self, weights: CheckpointWeights, settings: ModelSettings) -> VulkanBackend:
        """A backend for the model of ``settings``."""
        half = settings.dtype == "f16"
        self.made.append(VulkanBackend(self._runtime, weights, max_tokens=settings.max_tokens, half=half))
        return self.made[-1]


@contextmanager
def closed_on_failure() -> Iterator[NewBackends]:
    """Backends that give everything on the device back where the load fails."""
    backends = NewBackends(open_runtime())
    try:
        yield backends
    except BaseException:
        for backend in backends.made:
            backend.close()
        raise


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording made ready: where its inputs and its result lie, ``width`` numbers a text or None for no result."""

    replay: Replay
    outside: Mapping[OutsideName, Region]
    width: int | None


class ReplayedSegment(ReportingExecutable):
    """One executable: what the host does of a forward is copy in, submit, wait and copy out."""

    def __init__(self, recordings: Recordings, key: ExecutableKey, record: Callable[[], Recorded]) -> None:
        self._recordings = recordings
        self._key = key
        self._record = record
        self._result: Float32 | None = None

    def replay(self) -> Replay:
        """The recording, made anew where it was not kept."""
        return self._recordings.get(self._key, self._recorded)

    def __call__(self, ids: Int32, counts: Int32, hidden: object | None = None, kinds: Int32 | None = None) -> Any:
        replay = self.replay()
        self._ids[:] = ids.reshape(-1)
        self._counts[:] = counts
        if kinds is not None:
            self._kinds[:] = kinds.reshape(-1)
        replay.run(self.done)
        if replay.stale:
            self._recordings.drop(self._key)
        return None if self._result is None else self._result.copy()

    def _recorded(self) -> Replay:
        recorded = self._record()
        texts, positions = self._key.shape or (0, 0)
        outside = recorded.outside
        self._ids = _numbers(outside["ids"], np.int32, texts * positions)
        self._kinds = _numbers(outside["kinds"], np.int32, texts * positions)
        self._counts = _numbers(outside["counts"], np.int32, texts)
        if recorded.width is not None:
            flat = _numbers(outside["result"], np.float32, texts * recorded.width)
            self._result = flat.reshape(texts, recorded.width)
        return recorded.replay


def _numbers(region: Region, dtype: type[np.generic], count: int) -> Any:
    buffer, offset, _ = region
    assert buffer.mapped is not None
    return np.frombuffer(buffer.mapped, dtype, count, offset)
