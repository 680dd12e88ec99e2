"""What the Metal backends need of a machine, what this machine has, and the verdict.

Reading the machine and judging it are apart: ``judge`` is pure. Standard library only; MLX is touched by
``exercise_device`` alone, which imports it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from synapse_host.hookspecs import CapabilityEvidence, RefusalReason
from synapse_owned_metal.device import CPU_PLATFORMS, Device, is_metal_platform, metal_is_available

#: Oldest macOS that MLX's wheels are built for.
REQUIRED_MACOS = (14, 0)
#: First release whose compiler and attention the plugin was tested with.
REQUIRED_MLX = (0, 30)
#: The smallest Mac with Apple silicon has 8 GiB; below half of that nothing useful fits beside a desktop.
REQUIRED_MEMORY_MB = 4096
#: MB no Mac of today comes near: 16 TiB.
_MOST_MEMORY_MB = 2**24
#: A version starts with its major and minor release.
_RELEASE = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?(?![0-9])", re.ASCII)

#: What every listing says of a backend that a developer let run on the CPU.
CPU_NOTE = "runs on MLX's CPU device, let through by metal.allow_cpu: for development, never for use"


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on.

    ``macos`` is empty on another system. ``fault`` is why the device could not compute, None when it did or was not
    tried.
    """

    platform: str
    macos: str
    metal: bool
    memory_mb: int
    mlx: str | None
    fault: str | None = None


def read_machine() -> Machine:
    """Look at this machine; a fact that cannot be read is empty, false or zero, which the floor then refuses."""
    return Machine(
        platform=f"{sys.platform}-{platform.machine().lower()}",
        macos=platform.mac_ver()[0],
        metal=is_metal_platform() and metal_is_available(),
        memory_mb=_memory_mb(),
        mlx=mlx_version(),
    )


def _memory_mb() -> int:
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
    return pages * size // 2**20


def mlx_version() -> str | None:
    """Version of the installed MLX, read without importing it; None when there is none."""
    try:
        return version("mlx")
    except PackageNotFoundError:
        return None


def judge(machine: Machine, device: Device) -> CapabilityEvidence:
    """Hold the facts against the floor of ``device``; the first that fails is the reason (reading 3)."""
    required, observed = _required(device), _observed(machine, device)
    checks = (_judge_platform, _judge_device, _judge_runtime, _judge_fault)
    for failed in checks:
        refusal = failed(machine, device)
        if refusal is not None:
            reason, detail, message = refusal
            return CapabilityEvidence("refused", required, observed, reason, detail, message)
    return CapabilityEvidence("ok", required, observed, message=None if device.kind == "metal" else CPU_NOTE)


def probe(device: Device) -> CapabilityEvidence:
    """Read the machine and, when nothing refuses it already, compute on it."""
    machine = read_machine()
    verdict = judge(machine, device)
    if verdict.status == "refused":
        return verdict
    return judge(replace(machine, fault=exercise_device(device)), device)


def exercise_device(device: Device) -> str | None:
    """Multiply two small matrices in each activation type; what went wrong, or None."""
    try:
        from synapse_owned_metal.trial import run_trial

        for dtype in device.dtypes:
            run_trial(device, dtype)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


Refusal = tuple[RefusalReason, str, str]


def _judge_platform(machine: Machine, device: Device) -> Refusal | None:
    if machine.platform in device.platforms or machine.platform.partition("-")[0] in device.platforms:
        return None
    message = (
        f"the machine is {machine.platform} and the backend runs on {', '.join(device.platforms)}; use another backend"
    )
    if device.kind == "metal" and machine.platform.partition("-")[0] in CPU_PLATFORMS:
        message += " (whoever develops it may let MLX's CPU device through by metal.allow_cpu)"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_device(machine: Machine, device: Device) -> Refusal | None:
    if device.kind == "metal":
        floor, release = _dotted(REQUIRED_MACOS), _release(machine.macos)
        if release is None:
            message = f"the version of macOS is {machine.macos!r}, which is none; {floor} or newer is needed"
            return "device_below_floor", "os_too_old", message
        if release < REQUIRED_MACOS:
            message = f"macOS {machine.macos} is older than {floor}; update it"
            return "device_below_floor", "os_too_old", message
        # Without MLX nothing could look for the device: that is the runtime's refusal.
        if machine.mlx is not None and not machine.metal:
            return "device_missing", "metal_no_device", "MLX finds no Metal device; use another backend or machine"
    if not 0 < machine.memory_mb < _MOST_MEMORY_MB:
        message = f"the system says that it has {machine.memory_mb} MB of memory, which cannot be; use another backend"
        return "device_below_floor", "insufficient_memory", message
    if machine.memory_mb < REQUIRED_MEMORY_MB:
        message = f"{machine.memory_mb} MB of memory is below the {REQUIRED_MEMORY_MB} MB a worker needs"
        return "device_below_floor", "insufficient_memory", message
    return None


def _judge_runtime(machine: Machine, device: Device) -> Refusal | None:
    package = "synapse-host[metal]" if device.kind == "metal" else "mlx[cpu]"
    install = f"install it with: pip install '{package}'"
    if machine.mlx is None:
        return "worker_missing", "runtime_missing", f"MLX is not installed; {install}"
    release = _release(machine.mlx)
    if release is None or release < REQUIRED_MLX:
        problem = "of no version" if release is None else f"older than {_dotted(REQUIRED_MLX)}"
        message = f"MLX {machine.mlx!r} is {problem}; {install}"
        return "worker_missing", "runtime_too_old", message
    return None


def _judge_fault(machine: Machine, device: Device) -> Refusal | None:
    if machine.fault is None:
        return None
    message = f"MLX {machine.mlx} could not compute on its {device.kind} device ({machine.fault}); reinstall it"
    return "worker_missing", "probe_failed", message


def _required(device: Device) -> dict[str, Any]:
    metal = {"macos": f">={_dotted(REQUIRED_MACOS)}", "metal": True} if device.kind == "metal" else {}
    return {
        "platform": list(device.platforms),
        **metal,
        "memory_mb": REQUIRED_MEMORY_MB,
        "mlx": f">={_dotted(REQUIRED_MLX)}",
    }


def _observed(machine: Machine, device: Device) -> dict[str, Any]:
    return {
        "platform": machine.platform,
        "macos": machine.macos,
        "metal": machine.metal,
        "memory_mb": machine.memory_mb,
        "mlx": machine.mlx,
        "device": device.kind,
        "dtypes": list(device.dtypes),
    }


def _dotted(release: tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _release(text: str) -> tuple[int, int] | None:
    """Major and minor of a version; None for a text that is none."""
    found = _RELEASE.match(text)
    return None if found is None else (int(found[1]), int(found[2] or 0))
