"""What the CUDA driver says of this machine, asked through ctypes: no CUDA library is imported or needed.

Only calls that create no context are made, so a probe takes no memory of the device and wakes nothing for long.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
#: Values of CUresult and CUdevice_attribute (CUDA driver API reference).
_SUCCESS, _NO_DEVICE = 0, 100
_MAJOR, _MINOR = 75, 76
_NAME_BYTES = 256
#: More devices than any machine has; each is asked some calls.
_MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: its name, memory in MiB, and compute capability."""

    name: str
    memory_mb: int
    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What there is of a driver; ``gpus`` in its order, by which every library of CUDA numbers them.

    ``loaded`` is False without the library. ``api`` is the driver's version as CUDA writes it (12.4 is 12040), 0 when
    unknown. ``fault`` says which call failed, None when none did; a machine without a device is no fault.
    """

    loaded: bool
    api: int = 0
    gpus: tuple[Gpu, ...] = ()
    fault: str | None = None


class _Failed(Exception):
    """A call of the driver that did not succeed; the message names it and its result."""


def read_driver(library: str = LIBRARY) -> DriverFacts:
    """Ask the driver; never raises for what it answers."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return DriverFacts(loaded=False)
    api = 0
    try:
        api = _version(driver)
        result = _call(driver, "cuInit", 0, allowed=(_SUCCESS, _NO_DEVICE))
        gpus = () if result == _NO_DEVICE else tuple(_gpu(driver, place) for place in range(_count(driver)))
    except _Failed as failure:
        return DriverFacts(loaded=True, api=api, fault=str(failure))
    return DriverFacts(loaded=True, api=api, gpus=gpus)


def _version(driver: ctypes.CDLL) -> int:
    version = ctypes.c_int()
    _call(driver, "cuDriverGetVersion", ctypes.byref(version))
    return version.value


def _count(driver: ctypes.CDLL) -> int:
    count = ctypes.c_int()
    result = _call(driver, "cuDeviceGetCount", ctypes.byref(count), allowed=(_SUCCESS, _NO_DEVICE))
    if result == _NO_DEVICE:
        return 0
    if not 0 <= count.value <= _MOST_DEVICES:
        raise _Failed(f"cuDeviceGetCount counts {count.value} devices")
    return count.value


def _gpu(driver: ctypes.CDLL, place: int) -> Gpu:
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(driver, "cuDeviceGet", ctypes.byref(device), place)
    _call(driver, "cuDeviceGetName", name, _NAME_BYTES, device)
    _call(driver, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    major, minor = (_attribute(driver, which, device) for which in (_MAJOR, _MINOR))
    return Gpu(name.value.decode("utf-8", "replace"), memory.value >> 20, major, minor)


def _attribute(driver: ctypes.CDLL, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    _call(driver, "cuDeviceGetAttribute", ctypes.byref(value), which, device)
    return value.value


def _call(driver: ctypes.CDLL, name: str, *arguments: object, allowed: tuple[int, ...] = (_SUCCESS,)) -> int:
    try:
        function = getattr(driver, name)
    except AttributeError as missing:
        raise _Failed(f"the driver has no {name}") from missing
    function.restype = ctypes.c_int
    result: int = function(*arguments)
    if result not in allowed:
        raise _Failed(f"{name} answered {result}")
    return result
