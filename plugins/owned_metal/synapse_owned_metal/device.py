"""Which of MLX's devices computes: the Apple GPU, or the CPU where a developer let it through.

The choice is made from the operator's settings and the platform alone, so that the process that describes the backend
and the one that computes agree.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from synapse_host.hookspecs import BackendSettings, DeviceClass, DType

#: The only platform with Metal and an MLX that drives it.
METAL_PLATFORM = "darwin-arm64"
#: Where MLX has a CPU device for developers.
CPU_PLATFORMS = ("linux", "darwin")


@dataclass(frozen=True, slots=True)
class Device:
    """One of MLX's devices. ``kind`` stands in ``build_flags``, so it is part of every fingerprint."""

    kind: Literal["metal", "cpu"]

    @property
    def device_class(self) -> DeviceClass:
        """What a reply calls the device."""
        return self.kind

    @property
    def platforms(self) -> tuple[str, ...]:
        """Where a backend on this device runs."""
        return (METAL_PLATFORM,) if self.kind == "metal" else CPU_PLATFORMS

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Activation types, the default first: half precision is native on the GPU and emulated on the CPU."""
        return ("f16", "f32") if self.kind == "metal" else ("f32", "f16")

    @property
    def compiles(self) -> bool:
        """Whether graphs are fused by ``mx.compile``: on the CPU that starts a C++ compiler for each, for seconds."""
        return self.kind == "metal"


def chosen_device(settings: BackendSettings) -> Device:
    """The GPU, unless the operator's ``allow_cpu`` meets a machine without one."""
    if settings.get("allow_cpu") != "true" or (is_metal_platform() and metal_is_available()):
        return Device("metal")
    return Device("cpu")


def is_metal_platform() -> bool:
    """Whether this is macOS on Apple silicon."""
    return f"{sys.platform}-{platform.machine().lower()}" == METAL_PLATFORM


def metal_is_available() -> bool:
    """Whether MLX finds a Metal device; a virtual machine may have none. False without MLX."""
    try:
        from synapse_owned_metal.runtime import mx
    except ImportError:
        return False
    return bool(mx.metal.is_available())
