"""An opened device with its kernels, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_vulkan.device import Device
from synapse_vulkan.kernel_files import read_kernels
from synapse_vulkan.kernels import Kernels
from synapse_vulkan.pace import Pace
from synapse_vulkan.product import VARIANTS, Products


class Runtime:
    """A device, its kernels, the variants of the product that are fastest on it, and how fast it works.

    Raises ``KernelDamaged`` before the device is opened, and what ``Device`` raises.
    """

    def __init__(self, layers: Sequence[str] = (), extensions: Sequence[str] = (), chain: Any = None) -> None:
        code = read_kernels()
        self.device = Device(layers, extensions, chain)
        self.kernels = Kernels(self.device, code)
        self.products = Products(VARIANTS[0])
        self.pace = Pace()

    def close(self) -> None:
        """Close the device; every model on it must be closed before."""
        self.kernels.close()
        self.device.close()
