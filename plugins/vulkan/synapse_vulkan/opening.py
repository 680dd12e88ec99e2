"""The process's one device: opened, measured and kept by the first who asks."""

from __future__ import annotations

from synapse_host.hookspecs import PluginError
from synapse_vulkan.binding import NoBinding
from synapse_vulkan.kernel_files import KernelDamaged
from synapse_vulkan.measuring import choose_products
from synapse_vulkan.runtime import Runtime

_opened: list[Runtime] = []


def open_runtime() -> Runtime:
    """The process's runtime.

    Raises:
        PluginError: backend_missing, which no retry cures: no binding, no loader, or a kernel that is damaged.
        VulkanFault: Vulkan does not work.

    """
    if not _opened:
        try:
            runtime = Runtime()
        except (NoBinding, KernelDamaged) as missing:
            raise PluginError("backend_missing", str(missing)) from missing
        choose_products(runtime)
        _opened.append(runtime)
    return _opened[0]


def require_permission(runtime: Runtime, *, software: bool) -> None:
    """Refuse, with backend_missing, a software device that the operator did not allow."""
    facts = runtime.device.facts
    if facts.kind == "software" and not software:
        raise PluginError(
            "backend_missing",
            f"device {facts.name!r} is software on the processor; start the host with vulkan.allow_software_device "
            "set (SYNAPSE_VULKAN_ALLOW_SOFTWARE_DEVICE=1) to use it",
        )
