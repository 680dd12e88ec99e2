"""What is known of a Vulkan device before it is opened, and which one is taken. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

DeviceKind = Literal["discrete", "integrated", "virtual", "software", "other"]

#: Kinds in the order they are preferred: a card of its own before one that shares the processor's memory.
PREFERENCE: tuple[DeviceKind, ...] = ("discrete", "integrated", "virtual", "other", "software")
#: The first API whose promotion list the shaders and calls use.
REQUIRED_API = (1, 1)
#: A MiniLM takes about 150 MB on the device; below this nothing useful fits beside a desktop.
REQUIRED_MEMORY_MB = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits the kernels are held to (``VkPhysicalDeviceLimits``), bytes unless said."""

    invocations: int
    shared_bytes: int
    storage_bytes: int
    push_bytes: int
    storage_alignment: int
    groups: int
    texels: int
    group_width: int = 1024
    storage_buffers: int = 64
    allocation_bytes: int = 2**30


#: What the kernels use. Most are the specification's minimums. ``storage_buffers`` is what one kernel is bound to.
#: ``texels`` is the one some phones miss: a matrix is read as that many times four numbers (a Qwen3 of 0.6 billion
#: weights has matrices of 0.8 million), while tables are cut into parts.
REQUIRED_LIMITS: Mapping[str, int] = {
    "invocations": 128,
    "group_width": 128,
    "shared_bytes": 16384,
    "storage_bytes": 2**27,
    "storage_buffers": 6,
    "push_bytes": 128,
    "groups": 65535,
    "texels": 2**22,
}
#: The least any device may allocate at once, and MB no device of today comes near (16 TiB).
_LEAST_ALLOCATION, _MOST_MEMORY_MB = 2**27, 2**24
#: Majors that Vulkan has numbers for; past them are the bits of another API, such as Vulkan SC.
_MAJORS = range(128)
#: Buffers are cut from one allocation at multiples of this many bytes, the largest any device may ask for.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One physical device. ``memory_mb`` is its largest device-local heap."""

    name: str
    kind: DeviceKind
    vendor_id: int
    driver: str
    api: tuple[int, int]
    computes: bool
    memory_mb: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a device cannot be used: the fine word and what was found beside what is needed."""

    detail: str
    problem: str


def shortfall(facts: DeviceFacts) -> Shortfall | None:
    """The first floor the device misses; None when it misses none. A software device is judged elsewhere."""
    odd = _nonsense(facts)
    if odd is not None:
        return Shortfall("vulkan_driver_failed", f"its driver {odd}, which cannot be")
    if facts.api < REQUIRED_API:
        return Shortfall("vulkan_api_too_old", f"Vulkan {_dotted(facts.api)} is older than {_dotted(REQUIRED_API)}")
    if not facts.computes:
        return Shortfall("vulkan_missing_feature", "it has no queue that computes")
    for name, least in REQUIRED_LIMITS.items():
        found = getattr(facts.limits, name)
        if found < least:
            return Shortfall("vulkan_missing_feature", f"its limit {name} is {found}, below {least}")
    if ALIGNMENT % facts.limits.storage_alignment:
        problem = f"its limit storage_alignment is {facts.limits.storage_alignment}, no divisor of {ALIGNMENT}"
        return Shortfall("vulkan_missing_feature", problem)
    if facts.memory_mb < REQUIRED_MEMORY_MB:
        return Shortfall("vulkan_insufficient_memory", f"{facts.memory_mb} MB is below {REQUIRED_MEMORY_MB} MB")
    return None


def _nonsense(facts: DeviceFacts) -> str | None:
    """What of the driver's answers cannot be true; None when all may be."""
    limits = facts.limits
    if facts.api[0] not in _MAJORS:
        return f"says that its version of Vulkan is {_dotted(facts.api)}"
    if not 0 <= facts.memory_mb < _MOST_MEMORY_MB:
        return f"says that it has {facts.memory_mb} MB of memory"
    if limits.storage_alignment < 1:
        return f"says that buffers are aligned to {limits.storage_alignment} bytes"
    if limits.allocation_bytes < _LEAST_ALLOCATION:
        return f"says that its largest allocation is {limits.allocation_bytes} bytes"
    return None


def choose(devices: Sequence[DeviceFacts]) -> int | None:
    """Place of the device to use: one that meets the floor before any other, then by kind, then the loader's order.

    None when there is none at all.
    """
    order = sorted(
        range(len(devices)),
        key=lambda place: (shortfall(devices[place]) is not None, PREFERENCE.index(devices[place].kind), place),
    )
    return order[0] if order else None


def identity_flags(facts: DeviceFacts | None) -> dict[str, str]:
    """What of the device moves bits, for ``build_flags``: its name, its driver and whether it is software."""
    if facts is None:
        return {"device": "none"}
    flags = {"device": facts.name, "driver": facts.driver}
    return {**flags, "software_device": "true"} if facts.kind == "software" else flags


def as_evidence(facts: DeviceFacts) -> dict[str, Any]:
    """The facts as a row of ``backends`` shows them, keyed as the floor is."""
    return {
        "device": facts.name,
        "device_kind": facts.kind,
        "api": _dotted(facts.api),
        "memory_mb": facts.memory_mb,
        **{name: getattr(facts.limits, name) for name in REQUIRED_LIMITS},
    }


def required_evidence() -> dict[str, Any]:
    """The floor, keyed as the facts are."""
    return {"api": _dotted(REQUIRED_API), "memory_mb": REQUIRED_MEMORY_MB, **REQUIRED_LIMITS}


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
