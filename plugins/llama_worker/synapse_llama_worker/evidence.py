"""What the llama backend needs of a machine, what this machine has, and the verdict.

``judge`` is pure; the library itself is loaded by ``probe`` alone, in the child that probes.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from synapse_host.hookspecs import CapabilityEvidence, RefusalReason

PLATFORMS = ("linux", "darwin")
#: The release whose C structures the plugin was written and tested for.
REQUIRED_LIBRARY = "0.3.36"


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on. ``fault`` is why the library could not be loaded, None when it was or not tried."""

    platform: str
    arch: str
    library: str | None
    fault: str | None = None


def library_version() -> str | None:
    """Version of the installed llama-cpp-python, read without importing it; None when there is none."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return None


def judge(machine: Machine) -> CapabilityEvidence:
    """Hold the facts against the floor; the first that fails is the reason (reading 3)."""
    refusal = _judge_platform(machine) or _judge_library(machine)
    if refusal is None:
        return CapabilityEvidence("ok", _required(), _observed(machine))
    reason, detail, message = refusal
    return CapabilityEvidence("refused", _required(), _observed(machine), reason, detail, message)


def probe() -> CapabilityEvidence:
    """Read the machine and, when nothing refuses it already, load the library."""
    machine = Machine(sys.platform, platform.machine().lower(), library_version())
    verdict = judge(machine)
    if verdict.status == "refused":
        return verdict
    return judge(replace(machine, fault=_load_library()))


Refusal = tuple[RefusalReason, str, str]


def _load_library() -> str | None:
    """Load llama.cpp and start its backends; a build for another processor ends the probing child, not the host."""
    try:
        from synapse_llama_worker.library import open_library

        open_library()
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


def _judge_platform(machine: Machine) -> Refusal | None:
    if machine.platform in PLATFORMS:
        return None
    message = f"platform {machine.platform!r} is not one of {', '.join(PLATFORMS)}; use another backend"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_library(machine: Machine) -> Refusal | None:
    install = f"install it with: pip install llama-cpp-python=={REQUIRED_LIBRARY}"
    if machine.library is None:
        return "worker_missing", "runtime_missing", f"llama-cpp-python is not installed; {install}"
    if machine.library != REQUIRED_LIBRARY:
        message = f"llama-cpp-python {machine.library} is not the {REQUIRED_LIBRARY} this plugin knows; {install}"
        return "worker_missing", "runtime_version", message
    if machine.fault is not None:
        message = f"llama-cpp-python {machine.library} could not be loaded ({machine.fault}); reinstall it"
        return "worker_missing", "probe_failed", message
    return None


def _required() -> dict[str, Any]:
    return {"platform": list(PLATFORMS), "llama_cpp_python": REQUIRED_LIBRARY}


def _observed(machine: Machine) -> dict[str, Any]:
    return {"platform": machine.platform, "arch": machine.arch, "llama_cpp_python": machine.library}
