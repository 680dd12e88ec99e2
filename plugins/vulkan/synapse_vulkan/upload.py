"""Bytes from the host into the device's own memory: straight where the host sees it, through a staging buffer else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_vulkan.commands import CommandPool
from synapse_vulkan.device import Buffer, Device

#: Bytes that go through the staging buffer at once.
STAGING_BYTES = 8 << 20


class Uploader:
    """Copies arrays into buffers of ``device``; ``staged`` takes the long way even where the host sees the memory."""

    def __init__(self, device: Device, *, staged: bool = False) -> None:
        self._device = device
        self._staged = staged
        self._staging: Buffer | None = None
        self._pool: CommandPool | None = None

    def put(self, target: Buffer, offset: int, array: npt.NDArray[Any]) -> None:
        """Copy ``array`` to ``offset`` bytes into ``target`` and wait until it is there."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if target.mapped is not None and not self._staged:
            np.frombuffer(target.mapped, np.uint8, data.size, offset)[:] = data
            return
        for begin in range(0, data.size, STAGING_BYTES):
            self._put_piece(target, offset + begin, data[begin : begin + STAGING_BYTES])

    def close(self) -> None:
        """Free the staging buffer."""
        if self._pool is not None:
            self._pool.close()
        if self._staging is not None:
            self._device.free(self._staging)
        self._staging = self._pool = None

    def _put_piece(self, target: Buffer, offset: int, data: npt.NDArray[np.uint8]) -> None:
        device, ffi = self._device, self._device.ffi
        if self._staging is None or self._pool is None:
            self._staging, self._pool = device.host_buffer(STAGING_BYTES), CommandPool(device)
        assert self._staging.mapped is not None
        np.frombuffer(self._staging.mapped, np.uint8, data.size)[:] = data
        commands = self._pool.begin()
        region = ffi.new("VkBufferCopy*", [0, offset, data.size])
        device.lib.vkCmdCopyBuffer(commands, self._staging.handle, target.handle, 1, region)
        vk = device.vk
        self._pool.barrier(
            commands,
            (vk.VK_PIPELINE_STAGE_TRANSFER_BIT, vk.VK_ACCESS_TRANSFER_WRITE_BIT),
            (vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, vk.VK_ACCESS_SHADER_READ_BIT),
        )
        device.submit(self._pool.end(commands))
        self._pool.reset()
