"""The NVIDIA GPUs of a machine, asked of the driver's management library through ctypes.

Not of CUDA's: this library makes no context, takes no memory of the device, and knows the driver by the version people
install. A machine without the driver's files costs two looks at the file system and no import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from synapse_host.values import value_object

if TYPE_CHECKING:
    import ctypes

LIBRARY = "libnvidia-ml.so.1"
#: What a kernel with the driver has, on Linux itself and below Windows.
DRIVER_SIGNS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
#: Sizes of the library's text buffers (NVML API reference).
_VERSION_BYTES, _NAME_BYTES = 80, 96


@value_object
class NvidiaGpu:
    """One GPU as the driver presents it: its name, its memory in MiB, and the driver's own version."""

    name: str
    memory_mib: int
    driver: str

    def as_json(self) -> dict[str, str | int]:
        """The facts in the order they are hashed in."""
        return {"name": self.name, "memory_mib": self.memory_mib, "driver": self.driver}


class _Failed(Exception):
    """A call of the library that did not succeed."""


def nvidia_gpus(library: str = LIBRARY, signs: Sequence[Path] = DRIVER_SIGNS) -> tuple[NvidiaGpu, ...]:
    """Every GPU in the library's order; none without a driver, nor with one that does not answer.

    A driver that does not answer is no fault of a machine: nothing that would need it can be certified there.
    """
    if not sys.platform.startswith("linux") or not any(sign.exists() for sign in signs):
        return ()
    import ctypes

    try:
        driver = ctypes.CDLL(library)
        _call(driver, "nvmlInit_v2")
    except (OSError, _Failed):
        return ()
    try:
        return _listed(driver)
    except _Failed:
        return ()
    finally:
        driver.nvmlShutdown()


def _listed(driver: ctypes.CDLL) -> tuple[NvidiaGpu, ...]:
    import ctypes

    version, count = ctypes.create_string_buffer(_VERSION_BYTES), ctypes.c_uint()
    _call(driver, "nvmlSystemGetDriverVersion", version, _VERSION_BYTES)
    _call(driver, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    return tuple(_gpu(driver, place, _text(version)) for place in range(count.value))


def _gpu(driver: ctypes.CDLL, place: int, version: str) -> NvidiaGpu:
    import ctypes

    device, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    # Total, free and used bytes.
    memory = (ctypes.c_ulonglong * 3)()
    _call(driver, "nvmlDeviceGetHandleByIndex_v2", place, ctypes.byref(device))
    _call(driver, "nvmlDeviceGetName", device, name, _NAME_BYTES)
    _call(driver, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    return NvidiaGpu(_text(name), memory[0] >> 20, version)


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return buffer.value.decode("utf-8", "replace")


def _call(driver: ctypes.CDLL, name: str, *arguments: object) -> None:
    function = getattr(driver, name, None)
    if function is None or function(*arguments):
        raise _Failed(name)
