"""The C functions of the Vulkan loader, through the cffi declarations of the ``vulkan`` package.

Its Python wrappers are left aside: they cost five to nine times a plain call and keep objects alive by rules of their
own. Every module of the plugin takes ``ffi``, ``lib`` and the constants from ``open_binding``.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

#: Names of the result codes an application meets (Vulkan specification, VkResult).
_RESULTS = {
    -1: "VK_ERROR_OUT_OF_HOST_MEMORY",
    -2: "VK_ERROR_OUT_OF_DEVICE_MEMORY",
    -3: "VK_ERROR_INITIALIZATION_FAILED",
    -4: "VK_ERROR_DEVICE_LOST",
    -5: "VK_ERROR_MEMORY_MAP_FAILED",
    -6: "VK_ERROR_LAYER_NOT_PRESENT",
    -7: "VK_ERROR_EXTENSION_NOT_PRESENT",
    -8: "VK_ERROR_FEATURE_NOT_PRESENT",
    -9: "VK_ERROR_INCOMPATIBLE_DRIVER",
    -10: "VK_ERROR_TOO_MANY_OBJECTS",
    -12: "VK_ERROR_FRAGMENTED_POOL",
    -13: "VK_ERROR_UNKNOWN",
}
#: What helps where the driver itself is not at fault; the names are those of ``_RESULTS``.
_REMEDIES = {
    "VK_ERROR_MEMORY_MAP_FAILED": "unload a model or end what else uses the GPU",
    "VK_ERROR_LAYER_NOT_PRESENT": "install the layer or leave it out",
    "VK_ERROR_TOO_MANY_OBJECTS": "unload a model",
    "VK_ERROR_FRAGMENTED_POOL": "unload a model",
}
_REMEDY = "update the driver of the GPU, or use another backend"
#: Host and device out of memory.
NO_MEMORY = (-1, -2)
_DEVICE_LOST = -4
SUCCESS = 0
TIMEOUT = 2


class VulkanFault(RuntimeError):
    """A Vulkan call failed; the message names the call, the result and what to do."""


class DeviceLost(VulkanFault):
    """The device stopped answering, and everything on it is gone."""


class DeviceMemoryFull(MemoryError):
    """There is no room left on the device; the message names what was asked for."""


class NoBinding(ImportError):
    """The package ``vulkan`` or the system's Vulkan loader is not installed; the message says which."""


@cache
def open_binding() -> Any:
    """The module of declarations with the loader's library opened.

    Raises:
        NoBinding: the package or the loader is missing.

    """
    try:
        return importlib.import_module("vulkan._vulkan")
    except ImportError as missing:
        raise NoBinding(f"the package vulkan cannot be imported ({missing})") from missing
    except OSError as missing:
        raise NoBinding(f"the Vulkan loader is not installed ({missing})") from missing


def binding_version() -> str | None:
    """Version of the installed package, read without importing it; None when there is none."""
    try:
        return version("vulkan")
    except PackageNotFoundError:
        return None


def check(result: int, call: str) -> None:
    """Raise for a result other than success.

    Raises:
        DeviceLost: the device is gone.
        DeviceMemoryFull: host or device have no memory left.
        VulkanFault: any other failure.

    """
    if result != SUCCESS:
        _raise(result, call)


def _raise(result: int, call: str) -> NoReturn:
    name = _RESULTS.get(result, f"VkResult {result}")
    if result == _DEVICE_LOST:
        raise DeviceLost(f"{call}: {name}; the device reset or was removed, and what was on it is lost")
    if result in NO_MEMORY:
        raise DeviceMemoryFull(f"{call}: {name}; unload a model or load a smaller one")
    raise VulkanFault(f"{call}: {name}; {_REMEDIES.get(name, _REMEDY)}")
