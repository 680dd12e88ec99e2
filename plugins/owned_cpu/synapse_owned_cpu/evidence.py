"""What the CPU backend needs of a machine, what this machine has, and the verdict.

Reading the machine and judging it are apart: ``judge`` is pure. Standard library only; the runtime itself is touched
by ``exercise_runtime`` alone, which imports it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from synapse_host.hookspecs import CapabilityEvidence, DType, Premises, RefusalReason

PLATFORMS = ("linux", "darwin")
#: The instructions every release of the runtime needs, by processor architecture.
REQUIRED_ISA: Mapping[str, str] = {"x86_64": "avx2", "arm64": "asimd"}
#: A MiniLM worker takes about 450 MB; below this total nothing useful fits beside a desktop.
REQUIRED_MEMORY_MB = 1024
#: First release whose operation set and settings the plugin was tested with.
REQUIRED_OPENVINO = (2026, 0)
#: Instructions that multiply bfloat16; without one the runtime would emulate it, slower than float32.
BF16_ISA = frozenset({"avx512_bf16", "amx_bf16"})
#: Instruction words worth showing; a full list of flags would drown them.
_SHOWN_ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "bf16", "i8mm", "sve")
_SAME_ARCH = {"amd64": "x86_64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on. ``fault`` is why the runtime could not run, None when it did or was not tried."""

    platform: str
    arch: str
    isa: frozenset[str]
    memory_mb: int
    openvino: str | None
    fault: str | None = None


def read_machine() -> Machine:
    """Look at this machine; a fact that cannot be read is empty or zero, which the floor then refuses."""
    arch = platform.machine().lower()
    return Machine(
        platform=sys.platform,
        arch=_SAME_ARCH.get(arch, arch),
        isa=_read_isa(),
        memory_mb=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        openvino=openvino_version(),
    )


def openvino_version() -> str | None:
    """Version of the installed runtime, read without importing it; None when there is none."""
    try:
        return version("openvino")
    except PackageNotFoundError:
        return None


def dtypes_of(isa: frozenset[str]) -> tuple[DType, ...]:
    """Activation types worth offering on a processor with these instructions, the default first."""
    return ("bf16", "f32") if isa & BF16_ISA else ("f32",)


def judge(machine: Machine) -> CapabilityEvidence:
    """Hold the facts against the floor; the first that fails is the reason (reading 3)."""
    for failed in (_judge_platform, _judge_processor, _judge_runtime):
        refusal = failed(machine)
        if refusal is not None:
            reason, detail, message = refusal
            return CapabilityEvidence("refused", _required(machine), _observed(machine), reason, detail, message)
    return CapabilityEvidence("ok", _required(machine), _observed(machine))


def probe() -> CapabilityEvidence:
    """Read the machine and, when nothing refuses it already, run a graph on it."""
    machine = read_machine()
    verdict = judge(machine)
    if verdict.status == "ok":
        verdict = judge(replace(machine, fault=exercise_runtime(dtypes_of(machine.isa))))
    return replace(verdict, premises=premises())


def premises() -> Premises:
    """What the verdict rests on: the installed runtime, and the variables that hide instructions from it."""
    runtime = find_spec("openvino")
    return Premises(("ONEDNN_*", "DNNL_*", "OV_*"), (runtime.origin,) if runtime and runtime.origin else ())


def exercise_runtime(dtypes: tuple[DType, ...]) -> str | None:
    """Compile and run one small graph in each type; what went wrong, or None."""
    try:
        from synapse_owned_cpu.graph_backend import run_trial_graph

        for dtype in dtypes:
            run_trial_graph(dtype)
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


Refusal = tuple[RefusalReason, str, str]


def _judge_platform(machine: Machine) -> Refusal | None:
    if machine.platform in PLATFORMS:
        return None
    message = f"platform {machine.platform!r} is not one of {', '.join(PLATFORMS)}; use another backend"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_processor(machine: Machine) -> Refusal | None:
    needed = REQUIRED_ISA.get(machine.arch)
    if needed is None:
        message = f"processor {machine.arch!r} is not one of {', '.join(REQUIRED_ISA)}; use another backend"
        return "device_below_floor", "device_unsupported", message
    if needed not in machine.isa:
        message = f"the processor lacks {needed}, which OpenVINO's kernels need; use another machine"
        return "device_below_floor", "device_below_floor", message
    if machine.memory_mb < REQUIRED_MEMORY_MB:
        message = f"{machine.memory_mb} MB of memory is below the {REQUIRED_MEMORY_MB} MB a worker needs"
        return "device_below_floor", "device_below_floor", message
    return None


def _judge_runtime(machine: Machine) -> Refusal | None:
    install = "install it with: pip install 'synapse-host[cpu]'"
    floor = ".".join(map(str, REQUIRED_OPENVINO))
    if machine.openvino is None:
        return "worker_missing", "runtime_missing", f"OpenVINO is not installed; {install}"
    if _release(machine.openvino) < REQUIRED_OPENVINO:
        return "worker_missing", "runtime_too_old", f"OpenVINO {machine.openvino} is older than {floor}; {install}"
    if machine.fault is not None:
        message = f"OpenVINO {machine.openvino} could not run a graph ({machine.fault}); reinstall it"
        return "worker_missing", "probe_failed", message
    return None


def _required(machine: Machine) -> dict[str, Any]:
    return {
        "platform": list(PLATFORMS),
        "isa": REQUIRED_ISA.get(machine.arch, "/".join(REQUIRED_ISA.values())),
        "memory_mb": REQUIRED_MEMORY_MB,
        "openvino": ">=" + ".".join(map(str, REQUIRED_OPENVINO)),
    }


def _observed(machine: Machine) -> dict[str, Any]:
    return {
        "platform": machine.platform,
        "arch": machine.arch,
        "isa": [word for word in _SHOWN_ISA if word in machine.isa],
        "memory_mb": machine.memory_mb,
        "openvino": machine.openvino,
        "dtypes": list(dtypes_of(machine.isa)),
    }


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in text.split(".")[:2])


def _read_isa() -> frozenset[str]:
    if sys.platform == "linux":
        return _isa_of_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    if sys.platform == "darwin":
        return _isa_of_darwin()
    return frozenset()


def _isa_of_cpuinfo(text: str) -> frozenset[str]:
    """Flags every core has; a process may run on any of them."""
    lines = [line.partition(":") for line in text.splitlines()]
    cores = [set(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features")]
    return frozenset(set.intersection(*cores)) if cores else frozenset()


def _isa_of_darwin() -> frozenset[str]:
    if platform.machine() == "arm64":
        return frozenset({"asimd"})
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
    try:
        words = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(words.lower().split())
