"""Command buffers: allocated from a pool, recorded, and ended as something to submit any number of times."""

from __future__ import annotations

from typing import Any

from synapse_vulkan.binding import check
from synapse_vulkan.device import Device

#: (pipeline stages, accesses) of one side of a barrier.
Scope = tuple[int, int]


class CommandPool:
    """The command buffers of one owner; they end with it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        vk = device.vk
        fields = {
            "sType": vk.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
            "queueFamilyIndex": device.compute_family,
        }
        self._pool = device.create("CommandPool", fields)
        self._held: list[Any] = []

    def begin(self) -> Any:
        """A new command buffer, open for recording."""
        device, vk, ffi = self._device, self._device.vk, self._device.ffi
        about = ffi.new(
            "VkCommandBufferAllocateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                "commandPool": self._pool,
                "level": vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                "commandBufferCount": 1,
            },
        )
        made = ffi.new("VkCommandBuffer[1]")
        check(device.lib.vkAllocateCommandBuffers(device.handle, about, made), "vkAllocateCommandBuffers")
        begin = ffi.new("VkCommandBufferBeginInfo*", {"sType": vk.VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO})
        check(device.lib.vkBeginCommandBuffer(made[0], begin), "vkBeginCommandBuffer")
        return made[0]

    def barrier(self, commands: Any, before: Scope, after: Scope) -> None:
        """Nothing of ``after`` starts until what ``before`` wrote is there."""
        fields = {
            "sType": self._device.vk.VK_STRUCTURE_TYPE_MEMORY_BARRIER,
            "srcAccessMask": before[1],
            "dstAccessMask": after[1],
        }
        memory = self._device.ffi.new("VkMemoryBarrier*", fields)
        null = self._device.ffi.NULL
        self._device.lib.vkCmdPipelineBarrier(commands, before[0], after[0], 0, 1, memory, 0, null, 0, null)

    def end(self, commands: Any) -> Any:
        """Close the recording; what ``Device.submit`` takes, valid as long as the pool."""
        device, ffi = self._device, self._device.ffi
        check(device.lib.vkEndCommandBuffer(commands), "vkEndCommandBuffer")
        buffers = ffi.new("VkCommandBuffer[1]", [commands])
        fields = {
            "sType": device.vk.VK_STRUCTURE_TYPE_SUBMIT_INFO,
            "commandBufferCount": 1,
            "pCommandBuffers": buffers,
        }
        submit = ffi.new("VkSubmitInfo*", fields)
        self._held += [buffers, submit]
        return submit

    def reset(self) -> None:
        """Free every command buffer; none may be pending."""
        device = self._device
        for held in self._held[::2]:
            device.lib.vkFreeCommandBuffers(device.handle, self._pool, 1, held)
        self._held.clear()

    def close(self) -> None:
        """Destroy the pool with its command buffers."""
        self._held.clear()
        self._device.destroy("CommandPool", self._pool)
