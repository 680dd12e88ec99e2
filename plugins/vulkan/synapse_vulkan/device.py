"""One opened device: its queue, its memory and the calls that make and free what lives on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from synapse_vulkan.binding import NO_MEMORY, DeviceMemoryFull, VulkanFault, check, open_binding
from synapse_vulkan.device_facts import DeviceFacts, choose
from synapse_vulkan.instance import compute_family, create_instance, physical_devices, read_facts
from synapse_vulkan.memory_types import MemoryType, read_memories

#: Nanoseconds one wait for a fence may take before it is asked again; a device that hangs is the driver's to reset.
_WAIT_NS = 1_000_000_000
#: The mask of a buffer that may lie in memory of any type.
_ANY_TYPE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer over the whole of one allocation; ``mapped`` is its memory where the host sees it.

    ``taken`` are the bytes that its allocation takes of the heap ``heap``.
    """

    handle: Any
    memory: Any
    size: int
    taken: int
    heap: int
    mapped: memoryview | None = None


class Device:
    """The chosen device, opened. Everything made here is freed by ``close``, or by its own method before."""

    def __init__(self, layers: Sequence[str] = (), extensions: Sequence[str] = (), chain: Any = None) -> None:
        vk = open_binding()
        self.vk = vk
        self.ffi, self.lib = vk.ffi, vk.lib
        self._null = vk.ffi.NULL
        self.instance = create_instance(layers, extensions, chain)
        self._physical, self.facts = _chosen(self.instance)
        self._family = compute_family(self._physical)
        memory = self.ffi.new("VkPhysicalDeviceMemoryProperties*")
        self.lib.vkGetPhysicalDeviceMemoryProperties(self._physical, memory)
        self._memories = read_memories(memory)
        self._taken = [0] * len(self._memories.heaps)
        self.handle = self._open()
        queue = self.ffi.new("VkQueue*")
        self.lib.vkGetDeviceQueue(self.handle, self._family, 0, queue)
        self._queue = queue[0]
        self._fence = self._create("Fence", {"sType": vk.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO})
        #: Bytes allocated and not freed, on the device and in memory it shares with the host.
        self.allocated = 0
        self._no_fences = self.ffi.new("VkFence[1]", [self._fence])

    # --- memory ----------------------------------------------------------------------------------------------

    def device_buffer(self, size: int) -> Buffer:
        """``size`` bytes in the device's own memory; mapped where the host sees that memory.

        Raises:
            DeviceMemoryFull: the heap has no room, or the device makes no allocation as large.

        """
        return self._buffer(size, self._memories.for_device)

    def host_buffer(self, size: int) -> Buffer:
        """``size`` bytes that the host sees mapped and the device reads and writes over its bus."""
        return self._buffer(size, self._memories.for_host)

    def room(self) -> int:
        """Bytes of the heaps that ``device_buffer`` takes from, less what is taken of them here."""
        heaps = {kind.heap for kind in self._memories.for_device(_ANY_TYPE)}
        return sum(self._memories.heaps[heap] - self._taken[heap] for heap in heaps)

    def free(self, buffer: Buffer) -> None:
        """Destroy the buffer and free its memory; a view of ``mapped`` must not be used afterwards."""
        self.lib.vkDestroyBuffer(self.handle, buffer.handle, self._null)
        self.lib.vkFreeMemory(self.handle, buffer.memory, self._null)
        self.allocated -= buffer.size
        self._taken[buffer.heap] -= buffer.taken

    # --- work ------------------------------------------------------------------------------------------------

    def submit(self, commands: Any) -> None:
        """Run recorded commands (a ``VkSubmitInfo*``) and wait until they are done.

        Raises:
            DeviceLost: the device stopped answering.

        """
        lib, handle = self.lib, self.handle
        check(lib.vkQueueSubmit(self._queue, 1, commands, self._fence), "vkQueueSubmit")
        while (result := lib.vkWaitForFences(handle, 1, self._no_fences, 1, _WAIT_NS)) == self.vk.VK_TIMEOUT:
            pass
        check(result, "vkWaitForFences")
        check(lib.vkResetFences(handle, 1, self._no_fences), "vkResetFences")

    def create(self, kind: str, fields: dict[str, Any]) -> Any:
        """A new object of ``kind`` (``CommandPool`` …) from the fields of its create info."""
        return self._create(kind, fields)

    def texel_view(self, buffer: Buffer, offset: int, size: int, *, half: bool = False) -> Any:
        """A view of ``size`` bytes of ``buffer`` as texels of four numbers, float16 if ``half``, else float32."""
        vk = self.vk
        fields = {
            "sType": vk.VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO,
            "buffer": buffer.handle,
            "format": vk.VK_FORMAT_R16G16B16A16_SFLOAT if half else vk.VK_FORMAT_R32G32B32A32_SFLOAT,
            "offset": offset,
            "range": size,
        }
        return self._create("BufferView", fields)

    def destroy(self, kind: str, handle: Any) -> None:
        """Destroy an object that ``create`` made."""
        getattr(self.lib, f"vkDestroy{kind}")(self.handle, handle, self._null)

    @property
    def compute_family(self) -> int:
        """The queue family commands are recorded for."""
        assert self._family is not None
        return self._family

    def close(self) -> None:
        """Destroy device and instance; whatever was made on it must be gone."""
        self.close_device()
        self.lib.vkDestroyInstance(self.instance, self._null)

    def close_device(self) -> None:
        """Destroy the device alone, while whoever watches the instance still sees what was forgotten on it."""
        self.destroy("Fence", self._fence)
        self.lib.vkDestroyDevice(self.handle, self._null)

    # --- pieces ----------------------------------------------------------------------------------------------

    def _open(self) -> Any:
        priority = self.ffi.new("float[1]", [1.0])
        queue = self.ffi.new(
            "VkDeviceQueueCreateInfo*",
            {
                "sType": self.vk.VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                "queueFamilyIndex": self._family,
                "queueCount": 1,
                "pQueuePriorities": priority,
            },
        )
        info = self.ffi.new(
            "VkDeviceCreateInfo*",
            {
                "sType": self.vk.VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                "queueCreateInfoCount": 1,
                "pQueueCreateInfos": queue,
            },
        )
        made = self.ffi.new("VkDevice*")
        check(self.lib.vkCreateDevice(self._physical, info, self._null, made), "vkCreateDevice")
        return made[0]

    def _create(self, kind: str, fields: dict[str, Any]) -> Any:
        info = self.ffi.new(f"Vk{kind}CreateInfo*", fields)
        made = self.ffi.new(f"Vk{kind}*")
        check(getattr(self.lib, f"vkCreate{kind}")(self.handle, info, self._null, made), f"vkCreate{kind}")
        return made[0]

    def _buffer(self, size: int, types_for: Callable[[int], Sequence[MemoryType]]) -> Buffer:
        most = self.facts.limits.allocation_bytes
        if size > most:
            raise DeviceMemoryFull(
                f"{size} bytes are more than the {most} that {self.facts.name!r} gives at once; load a smaller model, "
                "or one with a smaller max_tokens"
            )
        vk = self.vk
        usage = (
            vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
            | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
        )
        handle = self._create(
            "Buffer", {"sType": vk.VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, "size": size, "usage": usage}
        )
        needs = self.ffi.new("VkMemoryRequirements*")
        self.lib.vkGetBufferMemoryRequirements(self.handle, handle, needs)
        try:
            memory, kind = self._allocate(needs, types_for(needs.memoryTypeBits))
        except BaseException:
            self.destroy("Buffer", handle)
            raise
        check(self.lib.vkBindBufferMemory(self.handle, handle, memory, 0), "vkBindBufferMemory")
        self.allocated += size
        self._taken[kind.heap] += needs.size
        mapped = self._map(memory, size) if kind.mappable else None
        return Buffer(handle, memory, size, needs.size, kind.heap, mapped)

    def _allocate(self, needs: Any, types: Sequence[MemoryType]) -> tuple[Any, MemoryType]:
        for kind in types:
            # Some drivers promise more than there is and swap; what we hold never passes the heap.
            if self._taken[kind.heap] + needs.size > self._memories.heaps[kind.heap]:
                continue
            fields = {
                "sType": self.vk.VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                "allocationSize": needs.size,
                "memoryTypeIndex": kind.place,
            }
            made = self.ffi.new("VkDeviceMemory*")
            info = self.ffi.new("VkMemoryAllocateInfo*", fields)
            result = self.lib.vkAllocateMemory(self.handle, info, self._null, made)
            if result not in NO_MEMORY:
                check(result, "vkAllocateMemory")
                return made[0], kind
        raise self._full(needs.size)

    def _full(self, size: int) -> DeviceMemoryFull:
        return DeviceMemoryFull(
            f"no {size} bytes of memory left on {self.facts.name!r}: {self.allocated} bytes are taken here and its "
            f"memory has {self.facts.memory_mb} MB; unload a model or load a smaller one"
        )

    def _map(self, memory: Any, size: int) -> memoryview:
        address = self.ffi.new("void**")
        check(self.lib.vkMapMemory(self.handle, memory, 0, size, 0, address), "vkMapMemory")
        return memoryview(self.ffi.buffer(address[0], size))


def _chosen(instance: Any) -> tuple[Any, DeviceFacts]:
    handles = physical_devices(instance)
    facts = [read_facts(handle) for handle in handles]
    place = choose(facts)
    if place is None:
        raise VulkanFault("the loader knows no Vulkan device; install the driver of your GPU")
    return handles[place], facts[place]
