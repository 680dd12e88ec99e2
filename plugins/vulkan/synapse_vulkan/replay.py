"""From a recording to commands that run it again and again: nothing of a step is touched by Python after this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from synapse_vulkan.arena import Plan
from synapse_vulkan.binding import check
from synapse_vulkan.commands import CommandPool
from synapse_vulkan.device import Buffer, Device
from synapse_vulkan.hazards import Hazards, Span
from synapse_vulkan.kernels import STORAGE_BINDINGS, TEXEL_BINDINGS, Kernels
from synapse_vulkan.pace import SUBMISSION_S, Pace
from synapse_vulkan.recording import WORD, Memory, OutsideName, Recording, Step, Stored, Value, cut_groups

#: A buffer, an offset in it and a size, in bytes.
Region: TypeAlias = tuple[Buffer, int, int]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the memory of a recording lies: its values in ``arena`` by ``plan``, the rest as named."""

    arena: Buffer
    plan: Plan
    outside: Mapping[OutsideName, Region]

    def of(self, memory: Memory, numbers: Mapping[int, int]) -> Region:
        """The region of ``memory``; ``numbers`` are the places of values in the plan by identity."""
        if isinstance(memory, Value):
            return self.arena, self.plan.offsets[numbers[id(memory)]], WORD * memory.size
        if isinstance(memory, Stored):
            buffer: Any = memory.buffer
            return buffer, memory.offset, memory.size
        return self.outside[memory.name]


@dataclass(slots=True)
class Submission:
    """What goes to the device at once: ``commands`` for ``Device.submit``, the seconds expected and of what kernels.

    ``pieces`` counts the parts it could be cut into.
    """

    commands: Any = None
    seconds: float = 0.0
    kernels: set[str] = field(default_factory=set)
    pieces: int = 0


class Replay:
    """The submissions of one recording, cut by ``pace``.

    ``stale`` says that one of them took another time than expected, so that the recording is to be made again. The
    first run is not counted: some drivers compile a kernel when it runs first.
    """

    def __init__(
        self, device: Device, kernels: Kernels, recording: Recording, places: Places, pace: Pace | None = None
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._pace = pace
        self._ran = self.stale = False
        self.dispatches = len(recording.steps)
        self._commands = CommandPool(device)
        self._sets = _DescriptorSets(device, kernels, len(recording.steps))
        numbers = {id(value): place for place, value in enumerate(recording.values)}
        self._regions: Callable[[Memory], Region] = lambda memory: places.of(memory, numbers)
        try:
            self.submissions = list(self._record(recording))
        except BaseException:
            self.close()
            raise
        # The recording's values are needed no longer.
        del self._regions

    def run(self, done: Callable[[], None] = lambda: None) -> None:
        """Submit everything in order, waiting for each; ``done`` is called after each but the last."""
        device, last, clock = self._device, len(self.submissions) - 1, time.perf_counter
        for place, submission in enumerate(self.submissions):
            began = clock()
            device.submit(submission.commands)
            # One is enough: the others were cut by the same speeds.
            if self._ran and not self.stale and submission.pieces > 1:
                self._hold(submission, clock() - began)
            if place < last:
                done()
        self._ran = True

    def close(self) -> None:
        """Free commands and descriptors; nothing of them may be pending."""
        self._commands.close()
        self._sets.close()

    def _hold(self, submission: Submission, took: float) -> None:
        pace = self._pace
        if pace is not None and pace.learn(submission.kernels, submission.seconds, took):
            self.stale = True

    def _seconds(self, step: Step) -> float:
        return 0.0 if self._pace is None else self._pace.seconds(step.kernel, step.work)

    def _record(self, recording: Recording) -> Iterator[Submission]:
        vk = self._device.vk
        compute = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
        written = (compute, vk.VK_ACCESS_SHADER_WRITE_BIT)
        either = (compute, vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT)
        pool, hazards, commands, current = self._commands, Hazards(), None, Submission()
        for step in recording.steps:
            descriptors, seconds = self._sets.make(step, self._regions), self._seconds(step)
            pieces = cut_groups(step, seconds / SUBMISSION_S)
            share = seconds / len(pieces)
            for number, (base, groups) in enumerate(pieces):
                if commands is not None and current.seconds + share > SUBMISSION_S:
                    current.commands = pool.end(commands)
                    yield current
                    commands = None
                if commands is None:
                    commands, current, hazards = pool.begin(), Submission(), Hazards()
                    pool.barrier(commands, written, either)
                # Pieces of one step write different parts and need no order.
                if not number and hazards.need_barrier(*self._touched(step)):
                    pool.barrier(commands, written, either)
                self._dispatch(commands, step, descriptors, base, groups)
                current.seconds += share
                current.kernels.add(step.kernel)
                current.pieces += groups[step.split]
        assert commands is not None, "a recording without a step has no result"
        pool.barrier(commands, written, (vk.VK_PIPELINE_STAGE_HOST_BIT, vk.VK_ACCESS_HOST_READ_BIT))
        current.commands = pool.end(commands)
        yield current

    def _touched(self, step: Step) -> tuple[list[Span], list[Span]]:
        """The regions a step reads and those it writes, as (buffer, begin, end)."""
        read: list[Span] = []
        written: list[Span] = []
        for place, memory in enumerate(step.bindings):
            if isinstance(memory, Stored):
                continue
            buffer, offset, size = self._regions(memory)
            (written if place in step.writes else read).append((id(buffer), offset, offset + size))
        return read, written

    def _dispatch(
        self, commands: Any, step: Step, descriptors: Any, base: tuple[int, int, int], groups: tuple[int, int, int]
    ) -> None:
        lib, vk, ffi = self._device.lib, self._device.vk, self._device.ffi
        point = vk.VK_PIPELINE_BIND_POINT_COMPUTE
        lib.vkCmdBindPipeline(commands, point, self._kernels.pipeline(step.kernel, step.constants))
        lib.vkCmdBindDescriptorSets(commands, point, self._kernels.layout, 0, 1, descriptors, 0, ffi.NULL)
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        lib.vkCmdPushConstants(commands, self._kernels.layout, stage, 0, len(step.push), step.push)
        # The plain call where it will do: the synchronisation layer does not look at the other one.
        if base == (0, 0, 0):
            lib.vkCmdDispatch(commands, *groups)
        else:
            lib.vkCmdDispatchBase(commands, *base, *groups)


class _DescriptorSets:
    """The descriptor sets of one recording, from a pool of exactly their number."""

    def __init__(self, device: Device, kernels: Kernels, count: int) -> None:
        self._device = device
        vk, ffi = device.vk, device.ffi
        sizes = ffi.new(
            "VkDescriptorPoolSize[]",
            [
                [vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, STORAGE_BINDINGS * count],
                [vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, TEXEL_BINDINGS * count],
            ],
        )
        fields = {
            "sType": vk.VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
            "maxSets": count,
            "poolSizeCount": 2,
            "pPoolSizes": sizes,
        }
        self._pool = device.create("DescriptorPool", fields)
        self._layouts = ffi.new("VkDescriptorSetLayout[]", [kernels.set_layout])
        self._blank_texels = kernels.blank_texels
        self._views: dict[tuple[int, int, int], Any] = {}

    def make(self, step: Step, region_of: Callable[[Memory], Region]) -> Any:
        """A set over the memory of ``step``, as a ``VkDescriptorSet[1]``."""
        device, vk, ffi = self._device, self._device.vk, self._device.ffi
        about = ffi.new(
            "VkDescriptorSetAllocateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                "descriptorPool": self._pool,
                "descriptorSetCount": 1,
                "pSetLayouts": self._layouts,
            },
        )
        made = ffi.new("VkDescriptorSet[1]")
        check(device.lib.vkAllocateDescriptorSets(device.handle, about, made), "vkAllocateDescriptorSets")
        infos = ffi.new("VkDescriptorBufferInfo[]", len(step.bindings))
        writes = []
        for place, memory in enumerate(step.bindings):
            buffer, offset, size = region_of(memory)
            infos[place].buffer, infos[place].offset, infos[place].range = buffer.handle, offset, size
            kind = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
            writes.append(self._write(made[0], place, kind, {"pBufferInfo": ffi.addressof(infos, place)}))
        views = ffi.new("VkBufferView[]", TEXEL_BINDINGS)
        for place in range(TEXEL_BINDINGS):
            given = place < len(step.texels)
            views[place] = self._view(step.texels[place], region_of) if given else self._blank_texels
            kind = vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
            what = {"pTexelBufferView": ffi.addressof(views, place)}
            writes.append(self._write(made[0], STORAGE_BINDINGS + place, kind, what))
        listed = ffi.new("VkWriteDescriptorSet[]", writes)
        device.lib.vkUpdateDescriptorSets(device.handle, len(writes), listed, 0, ffi.NULL)
        return made

    def close(self) -> None:
        """Destroy the pool with its sets, and the views made for them."""
        self._device.destroy("DescriptorPool", self._pool)
        for view in self._views.values():
            self._device.destroy("BufferView", view)
        self._views.clear()

    def _view(self, memory: Memory, region_of: Callable[[Memory], Region]) -> Any:
        if isinstance(memory, Stored) and memory.texels is not None:
            return memory.texels
        buffer, offset, size = region_of(memory)
        key = (id(buffer), offset, size)
        if key not in self._views:
            self._views[key] = self._device.texel_view(buffer, offset, size)
        return self._views[key]

    def _write(self, target: Any, place: int, kind: int, what: dict[str, Any]) -> dict[str, Any]:
        return {
            "sType": self._device.vk.VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
            "dstSet": target,
            "dstBinding": place,
            "descriptorCount": 1,
            "descriptorType": kind,
            **what,
        }
