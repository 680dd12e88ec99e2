"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version

from synapse_owned_cpu import evidence

#: Runnable tasks per core above which somebody else is using the machine: absolute figures then mean little.
BUSY_LOAD = 0.25
#: What decides speed on our side.
PACKAGES = ("synapse-host", "openvino", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine as far as speed is concerned; ``load`` is of the minute before the benchmarks."""

    system: str
    cores: int
    dtype: str
    load: float
    versions: str

    @property
    def busy(self) -> bool:
        """Whether other programs were at work."""
        return self.load / self.cores > BUSY_LOAD

    @property
    def reference_class(self) -> bool:
        """Whether absolute floors apply: the cpu lane computes in bf16, as it does on the reference box."""
        return self.dtype == "bf16" and self.cores > 1

    def __str__(self) -> str:
        return f"{self.system}, {self.cores} cores, cpu lane in {self.dtype}, load {self.load:.2f}; {self.versions}"


def this_machine() -> Machine:
    """Look at it now, before anything is started."""
    return Machine(
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        evidence.dtypes_of(evidence.read_machine().isa)[0],
        os.getloadavg()[0],
        ", ".join(f"{package} {version(package)}" for package in PACKAGES),
    )


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(said.stdout) / 1024
