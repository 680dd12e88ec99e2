"""The machine as certifications see it: system build, processor, memory class, instruction set, GPUs and engines.

A certification holds for one machine profile (wire contract section 5). Every part is probed; a part that cannot be
read stops the caller, because a placeholder would let the evidence of one machine pass on another.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from synapse_host.identity import cpu_features
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import EngineIdentity, compact_json
from synapse_host.identity.nvidia_gpus import NvidiaGpu, nvidia_gpus
from synapse_host.values import value_object

#: Seconds one probing command may take (facts section 3).
PROBE_BUDGET_S = 2.0
#: Upper bounds of the memory classes, in GiB.
_RAM_CLASSES_GIB = (4, 8, 16, 32, 64, 128, 256)
_GIB = 2**30
_CPUINFO = "/proc/cpuinfo"
T = TypeVar("T")


class MachineProbeFailed(RuntimeError):
    """A part of the machine profile could not be read; the message says which, why, and what to do."""


class MachineSource(Protocol):
    """Where the facts of a machine come from; tests bring their own."""

    def uname(self) -> tuple[str, str, str]:
        """System name, release and machine."""

    def memory_bytes(self) -> int:
        """Bytes of main memory the system manages."""

    def read_text(self, path: str) -> str:
        """The text of a system file."""

    def run(self, *command: str) -> str:
        """The output of a system command that must succeed within the probe budget."""

    def gpus(self) -> tuple[NvidiaGpu, ...]:
        """The GPUs whose driver is part of what is computed, in the driver's order."""


class ThisMachine:
    """The machine this process runs on."""

    def uname(self) -> tuple[str, str, str]:
        facts = os.uname()
        return facts.sysname, facts.release, facts.machine

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def read_text(self, path: str) -> str:
        return Path(path).read_text(encoding="utf-8", errors="replace")

    def run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PROBE_BUDGET_S)
        return done.stdout

    def gpus(self) -> tuple[NvidiaGpu, ...]:
        return nvidia_gpus()


@value_object
class MachineProfile:
    """What a certification is bound to, in the order it is hashed in; ``gpus`` count where there are any."""

    os_build: str
    arch: str
    chip_model: str
    ram_class: str
    isa: str
    engine_identities: tuple[EngineIdentity, ...]
    gpus: tuple[NvidiaGpu, ...] = ()

    def parts(self) -> dict[str, Any]:
        """What there is beside engines, by name; a machine without a GPU has the parts it always had."""
        found = {
            "os_build": self.os_build,
            "arch": self.arch,
            "chip_model": self.chip_model,
            "ram_class": self.ram_class,
            "isa": self.isa,
        }
        return found | ({"gpus": [gpu.as_json() for gpu in self.gpus]} if self.gpus else {})

    def as_json(self) -> str:
        """The compact JSON the hash is taken over; engines as sorted when the profile was read."""
        return compact_json(self.parts() | {"engine_identities": [each.as_json() for each in self.engine_identities]})

    @property
    def hash(self) -> str:
        """SHA-256 hex of the profile's JSON: the key of certification and performance rows."""
        return sha256_hex(self.as_json().encode())


def read_machine_profile(
    engines: Sequence[EngineIdentity], *, os_build_override: str | None, source: MachineSource | None = None
) -> MachineProfile:
    """Probe the machine and join it with the identities of the engines that can run on it.

    ``os_build_override`` replaces the system build before anything is hashed. Blocks up to ``PROBE_BUDGET_S`` for each
    command on macOS; reads files on Linux, and asks the driver where there is one.

    Raises:
        MachineProbeFailed: a part could not be read, or the system is neither Linux nor macOS.

    """
    machine = source or ThisMachine()
    system, release, arch = _probed("system name", "uname", machine.uname)
    if system not in _PROBES:
        raise MachineProbeFailed(
            f"machine profile: system {system!r} is none of {', '.join(_PROBES)}; run the host there"
        )
    probe = _PROBES[system](machine, release, arch)
    build = os_build_override if os_build_override is not None else probe.os_build()
    if not build.strip():
        raise MachineProbeFailed(
            f"machine profile: system build {build!r} is blank; give the override a value or unset it"
        )
    ram = _probed("memory size", "sysconf", machine.memory_bytes)
    chip, isa = probe.chip_model(), probe.isa()
    return MachineProfile(build, arch, chip, ram_class(ram), isa, _sorted_engines(engines), machine.gpus())


def ram_class(memory_bytes: int) -> str:
    """The class of a memory size: ``le_N_gib`` for the smallest N that holds it, ``gt_256_gib`` past the last."""
    for bound in _RAM_CLASSES_GIB:
        if memory_bytes <= bound * _GIB:
            return f"le_{bound}_gib"
    return f"gt_{_RAM_CLASSES_GIB[-1]}_gib"


class _LinuxProbe:
    def __init__(self, machine: MachineSource, release: str, arch: str) -> None:
        self._machine, self._release, self._arch = machine, release, arch

    def os_build(self) -> str:
        return f"Linux {self._release}"

    def chip_model(self) -> str:
        return _probed("processor model", _CPUINFO, lambda: cpu_features.chip_model_of_cpuinfo(self._cpuinfo()))

    def isa(self) -> str:
        arch = self._arch
        return _probed(
            "instruction set", _CPUINFO, lambda: cpu_features.instruction_set_of_cpuinfo(self._cpuinfo(), arch)
        )

    def _cpuinfo(self) -> str:
        return self._machine.read_text(_CPUINFO)


class _MacosProbe:
    def __init__(self, machine: MachineSource, release: str, arch: str) -> None:
        self._machine, self._arch = machine, arch

    def os_build(self) -> str:
        return self._line("system build", "sw_vers", "-buildVersion")

    def chip_model(self) -> str:
        try:
            return self._line("processor model", "sysctl", "-n", "machdep.cpu.brand_string")
        except MachineProbeFailed:
            return self._line("processor model", "sysctl", "-n", "hw.model")

    def isa(self) -> str:
        command = ("sysctl", "hw.optional")
        return _probed(
            "instruction set",
            " ".join(command),
            lambda: cpu_features.instruction_set_of_sysctl(self._machine.run(*command), self._arch),
        )

    def _line(self, part: str, *command: str) -> str:
        return _probed(part, " ".join(command), lambda: _filled(self._machine.run(*command)))


_PROBES: dict[str, type[_LinuxProbe] | type[_MacosProbe]] = {"Linux": _LinuxProbe, "Darwin": _MacosProbe}


def _filled(output: str) -> str:
    if not output.strip():
        raise ValueError("it printed nothing")
    return output.strip()


def _probed(part: str, origin: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise MachineProbeFailed(
            f"machine profile: the {part} could not be read from {origin}: {error}; "
            f"make {origin} available to the host and start it again"
        ) from error


def _sorted_engines(engines: Sequence[EngineIdentity]) -> tuple[EngineIdentity, ...]:
    """By engine, version and flags, each once: the order of discovery must not show in the hash."""
    distinct = {_engine_key(engine): engine for engine in engines}
    return tuple(distinct[key] for key in sorted(distinct))


def _engine_key(engine: EngineIdentity) -> tuple[str, str, str]:
    return engine.engine, engine.version, json.dumps(engine.as_json()["build_flags"])
