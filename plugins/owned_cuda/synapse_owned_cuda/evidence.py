"""What the CUDA backend needs of a machine, what this machine has, and the verdict.

Reading the machine (``driver``) and judging it are apart: ``judge`` is pure. Standard library only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from synapse_host.hookspecs import BackendSettings, CapabilityEvidence, Premises, RefusalReason
from synapse_owned_cuda.driver import DriverFacts, Gpu, read_driver

PLATFORMS = ("linux", "win32")
#: Oldest driver API, 12.4 as CUDA writes it, and oldest compute capability (wire contract, ``owned_cuda_unsupported``).
REQUIRED_DRIVER_API = 12040
REQUIRED_CAPABILITY = (7, 5)
#: First release of CuPy whose names, launches and pool the plugin was written to.
REQUIRED_CUPY = 14
#: A device that stands in for a real one because a developer said so.
_VARIABLE = " (in the environment it is SYNAPSE_CUDA_"
_STAND_IN = "set by cuda.driver_api and cuda.compute_capability"
#: Variables of driver and runtime that choose, order and hide devices, and say where libraries are.
_ENVIRONMENT = ("CUDA_*", "NVIDIA_*", "LD_LIBRARY_PATH")
#: Where distributions put the driver's library; another driver is another file there.
_DRIVERS = tuple(
    f"{folder}/libcuda.so.1" for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib")
)
#: Said beside the verdict of every machine that may run it.
NEVER_RUN = "no GPU had run this backend when this version was made; certify a model before you trust it"
#: Versions as CUDA writes them, 1000 times the major and 10 times the minor, and majors of compute capability.
_VERSIONS, _MAJORS = range(1000, 100_000), range(1, 100)
#: MiB no device of today comes near: 16 TiB.
_MOST_MEMORY_MB = 2**24
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts a verdict rests on; ``stand_in`` says that a developer set them, ``cupy`` is its version, if any."""

    platform: str
    driver: DriverFacts
    stand_in: bool = False
    cupy: str | None = None

    @property
    def gpu(self) -> Gpu | None:
        """The device that would be used: the first of the highest compute capability."""
        gpus = self.driver.gpus
        return gpus[best_place(gpus)] if gpus else None


def best_place(gpus: Sequence[Gpu]) -> int:
    """Where the device to use stands among ``gpus``; the first where there are none, for CuPy to say why not."""
    return max(range(len(gpus)), key=lambda place: (gpus[place].major, gpus[place].minor, -place), default=0)


def read_machine(settings: BackendSettings) -> Machine:
    """Ask the driver, or take the developer's pair of settings in its place; one of the pair alone counts for nothing.

    Raises:
        ValueError: a setting of the pair is not a number of its form; the message names that one.

    """
    stand_in, cupy = _stand_in(settings), cupy_version()
    if stand_in is not None:
        return Machine(sys.platform, stand_in, stand_in=True, cupy=cupy)
    driver = read_driver() if sys.platform in PLATFORMS else DriverFacts(loaded=False)
    return Machine(sys.platform, driver, cupy=cupy)


def cupy_version() -> str | None:
    """Version of the installed CuPy for CUDA 12, read without importing it; None when there is none."""
    return _installed("cupy-cuda12x")


def build_flags() -> dict[str, str]:
    """What of the build moves bits beside our sources: the libraries that multiply and that compile them.

    ``virtual_arch`` is the least the kernels are written for. They are compiled for the device at hand, which the
    machine profile names. A library of the system's own CUDA toolkit, of which no distribution tells, is ``system``.
    """
    cupy = cupy_version()
    beside = "none" if cupy is None else "system"
    return {
        "virtual_arch": "compute_75",
        "cupy": _short(cupy or "none"),
        "cublas": _short(_installed("nvidia-cublas-cu12") or beside),
        "nvrtc": _short(_installed("nvidia-cuda-nvrtc-cu12") or beside),
    }


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _short(release: str) -> str:
    return ".".join(release.split(".")[:2])


def probe(settings: BackendSettings) -> CapabilityEvidence:
    """Read the machine and judge it; a setting nobody can read refuses the backend and is no fault of the plugin."""
    try:
        return replace(judge(read_machine(settings)), premises=premises())
    except ValueError as wrong:
        observed = _observed(Machine(sys.platform, DriverFacts(loaded=False), cupy=cupy_version()))
        return CapabilityEvidence("refused", _REQUIRED, observed, "worker_missing", "setting_invalid", str(wrong))


def premises() -> Premises:
    """What the verdict rests on: variables that choose and hide devices, the driver's library, the installed CuPy."""
    runtime = find_spec("cupy")
    drivers = _DRIVERS if sys.platform == "linux" else ()
    return Premises(_ENVIRONMENT, (*drivers, runtime.origin) if runtime and runtime.origin else drivers)


def judge(machine: Machine) -> CapabilityEvidence:
    """Hold the facts against the floor; the first that fails is the reason (reading 3)."""
    observed = _observed(machine)
    for failed in (_judge_platform, _judge_driver, _judge_device, _judge_runtime):
        refusal = failed(machine)
        if refusal is not None:
            reason, detail, message = refusal
            return CapabilityEvidence("refused", _REQUIRED, observed, reason, detail, message)
    return CapabilityEvidence("ok", _REQUIRED, observed, message=_STAND_IN if machine.stand_in else NEVER_RUN)


_REQUIRED: Mapping[str, Any] = {
    "platform": list(PLATFORMS),
    "driver_api": REQUIRED_DRIVER_API,
    "compute_capability": {"major": REQUIRED_CAPABILITY[0], "minor": REQUIRED_CAPABILITY[1]},
    "cupy": f">={REQUIRED_CUPY}",
}
Refusal = tuple[RefusalReason, str, str]


def _judge_platform(machine: Machine) -> Refusal | None:
    if machine.platform in PLATFORMS:
        return None
    message = f"platform {machine.platform!r} is not one of {', '.join(PLATFORMS)}; use another backend"
    return "not_supported_on_platform", "not_supported_on_platform", message


def _judge_driver(machine: Machine) -> Refusal | None:
    driver = machine.driver
    if not driver.loaded:
        message = "no NVIDIA driver is installed (its library cannot be loaded); install one, or use another backend"
        return "device_missing", "cuda_no_driver", message
    # A driver that failed before it said its version is broken and not old.
    if driver.api < REQUIRED_DRIVER_API and driver.api in _VERSIONS:
        message = f"the driver's API {driver.api} is older than {REQUIRED_DRIVER_API} (CUDA 12.4); update the driver"
        return "device_below_floor", "cuda_driver_too_old", message
    fault = driver.fault or (None if machine.stand_in else _nonsense(driver.api, machine.gpu))
    if fault is not None:
        message = f"the NVIDIA driver does not work: {fault}; run nvidia-smi, restart, or reinstall the driver"
        return "device_missing", "cuda_driver_failed", message
    return None


def _nonsense(api: int, gpu: Gpu | None) -> str | None:
    """What of the answers about the device to use cannot be true; None when all may be."""
    if api not in _VERSIONS:
        return f"it says that its API is {api}, which is no version of CUDA such as {REQUIRED_DRIVER_API}"
    if gpu is None:
        return None
    if gpu.major not in _MAJORS or gpu.minor not in range(10):
        return f"it says that {gpu.name!r} has compute capability {gpu.major}.{gpu.minor}, which is none"
    if not 0 < gpu.memory_mb < _MOST_MEMORY_MB:
        return f"it says that {gpu.name!r} has {gpu.memory_mb} MB of memory"
    return None


def _judge_device(machine: Machine) -> Refusal | None:
    gpu = machine.gpu
    if gpu is None:
        message = (
            "the NVIDIA driver finds no device; check that it is plugged in and not hidden, or use another backend"
        )
        return "device_missing", "cuda_no_device", message
    if (gpu.major, gpu.minor) < REQUIRED_CAPABILITY:
        floor = ".".join(map(str, REQUIRED_CAPABILITY))
        message = f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}, below {floor}; use another backend"
        return "device_below_floor", "cuda_compute_capability_too_low", message
    return None


def _judge_runtime(machine: Machine) -> Refusal | None:
    install = "install it with: pip install 'synapse-host[cuda]'"
    if machine.cupy is None:
        return "worker_missing", "cuda_runtime_missing", f"CuPy for CUDA 12 is not installed; {install}"
    release = machine.cupy.partition(".")[0]
    if not release.isdecimal() or int(release) < REQUIRED_CUPY:
        message = f"CuPy {machine.cupy} is not of release {REQUIRED_CUPY} or newer; {install}"
        return "worker_missing", "cuda_runtime_too_old", message
    return None


def _observed(machine: Machine) -> dict[str, Any]:
    gpu = machine.gpu
    return {
        "platform": machine.platform,
        "driver_api": None if not machine.driver.loaded else machine.driver.api,
        "compute_capability": None if gpu is None else {"major": gpu.major, "minor": gpu.minor},
        "device": None if gpu is None else gpu.name,
        "memory_mb": None if gpu is None else gpu.memory_mb,
        "devices": len(machine.driver.gpus),
        "cupy": machine.cupy,
    }


def _stand_in(settings: BackendSettings) -> DriverFacts | None:
    api, capability = settings.get("driver_api"), settings.get("compute_capability")
    if not (api and capability):
        return None
    found = _CAPABILITY.fullmatch(capability)
    if not (api.isascii() and api.isdigit()):
        raise ValueError(f"cuda.driver_api {api!r} is no whole number such as 12040; correct it{_VARIABLE}DRIVER_API)")
    if found is None:
        raise ValueError(
            f"cuda.compute_capability {capability!r} is not of the form 7.5; correct it{_VARIABLE}COMPUTE_CAPABILITY)"
        )
    return DriverFacts(True, int(api), (Gpu(_STAND_IN, 0, int(found[1]), int(found[2])),))
