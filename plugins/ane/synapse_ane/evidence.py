"""What the Neural Engine backend needs of a machine, what this machine has, and the verdict. ``judge`` is pure."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from synapse_host.hookspecs import CapabilityEvidence, RefusalReason

PLATFORMS = ("darwin-arm64",)
#: Packages of several functions and half-precision inputs.
REQUIRED_MACOS = (15, 0)
#: First release that compiles a package by its path; 8.1 is the first that reads compute plans.
REQUIRED_COREMLTOOLS = (8, 2)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on; ``macos`` is empty elsewhere."""

    platform: str
    arch: str
    macos: tuple[int, ...]
    coremltools: str | None


def read_machine() -> Machine:
    """Look at this machine."""
    release = platform.mac_ver()[0]
    return Machine(sys.platform, platform.machine().lower(), _numbers(release), coremltools_version())


def coremltools_version() -> str | None:
    """Version of the installed coremltools, read without importing it; None when there is none."""
    try:
        return version("coremltools")
    except PackageNotFoundError:
        return None


def judge(machine: Machine, *, interpreter: bool = False) -> CapabilityEvidence:
    """Hold the facts against the floor; the first that fails is the reason (reading 3).

    With ``interpreter``, no Neural Engine is asked for: only the library that builds programs.
    """
    refusal = None if interpreter else _judge_platform(machine) or _judge_system(machine)
    refusal = refusal or _judge_runtime(machine)
    if refusal is None:
        return CapabilityEvidence("ok", _required(), _observed(machine))
    reason, detail, message = refusal
    return CapabilityEvidence("refused", _required(), _observed(machine), reason, detail, message)


Refusal = tuple[RefusalReason, str, str]


def _judge_platform(machine: Machine) -> Refusal | None:
    here = f"{machine.platform}-{machine.arch}"
    if here in PLATFORMS:
        return None
    message = f"{here} has no Neural Engine; this backend runs on Macs with Apple silicon, so use another one here"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_system(machine: Machine) -> Refusal | None:
    if machine.macos >= REQUIRED_MACOS:
        return None
    message = f"macOS {_dotted(machine.macos)} is older than {_dotted(REQUIRED_MACOS)}; update it or use 'metal'"
    return "device_below_floor", "device_below_floor", message


def _judge_runtime(machine: Machine) -> Refusal | None:
    floor = _dotted(REQUIRED_COREMLTOOLS)
    if machine.coremltools is None:
        message = f"coremltools is not installed; install it with: pip install 'coremltools>={floor}'"
        return "worker_missing", "runtime_missing", message
    if _numbers(machine.coremltools)[:2] < REQUIRED_COREMLTOOLS:
        return (
            "worker_missing",
            "runtime_version",
            f"coremltools {machine.coremltools} is older than {floor}; update it",
        )
    return None


def _required() -> dict[str, Any]:
    return {
        "platform": list(PLATFORMS),
        "macos": _dotted(REQUIRED_MACOS),
        "coremltools": _dotted(REQUIRED_COREMLTOOLS),
    }


def _observed(machine: Machine) -> dict[str, Any]:
    return {
        "platform": f"{machine.platform}-{machine.arch}",
        "macos": _dotted(machine.macos) or None,
        "coremltools": machine.coremltools,
    }


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
