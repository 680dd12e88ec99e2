"""The process's one opened device with its kernels, and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.hookspecs import PluginError
from synapse_vulkan.device import Device
from synapse_vulkan.kernels import Kernels
from synapse_vulkan.product import VARIANTS, Variant

#: Seconds one submission may take at most, by the measured speed; drivers reset a device after two and more.
SUBMISSION_S = 0.25
#: Floating operations a second taken of a device nobody measured.
UNMEASURED_SPEED = 20e9


class Runtime:
    """A device, its kernels, and the product's variant that is fastest on it."""

    def __init__(self, layers: Sequence[str] = (), extensions: Sequence[str] = (), chain: Any = None) -> None:
        self.device = Device(layers, extensions, chain)
        self.kernels = Kernels(self.device)
        self.variant: Variant = VARIANTS[0]
        self.speed = UNMEASURED_SPEED

    @property
    def work_limit(self) -> float:
        """Floating operations of one submission."""
        return self.speed * SUBMISSION_S

    def close(self) -> None:
        """Close the device; every model on it must be closed before."""
        self.kernels.close()
        self.device.close()


_opened: list[Runtime] = []


def open_runtime() -> Runtime:
    """The process's runtime, opened and measured by the first who asks.

    Raises:
        NoBinding, VulkanFault: there is no Vulkan here, or it does not work.

    """
    if not _opened:
        from synapse_vulkan.measuring import choose_variant

        runtime = Runtime()
        choose_variant(runtime)
        _opened.append(runtime)
    return _opened[0]


def require_permission(runtime: Runtime, *, software: bool) -> None:
    """Refuse, with backend_missing, a software device that the operator did not allow."""
    facts = runtime.device.facts
    if facts.kind == "software" and not software:
        raise PluginError(
            "backend_missing",
            f"device {facts.name!r} is software on the processor; set vulkan.allow_software_device to use it",
        )
