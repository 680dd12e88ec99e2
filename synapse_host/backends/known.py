"""The backends of this project by name, so that one that is not installed still has a row with the right reason.

Pure. Source: the table of fixed names (design section 3) and reading 3, which wants the platform named even where
nothing is installed.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Collection

from synapse_host.hookspecs import DeviceClass
from synapse_host.values import value_object

#: Spellings of one processor architecture that operating systems disagree on.
_MACHINES = {"aarch64": "arm64", "amd64": "x86_64"}
#: Words authors write for what ``sys.platform`` calls otherwise.
_SYSTEMS = {"macos": "darwin", "windows": "win32"}


@value_object
class KnownBackend:
    """One backend this project ships; ``platforms`` as in ``BackendDescription``."""

    backend: str
    distribution: str
    extra: str
    engine: str
    device_class: DeviceClass
    platforms: tuple[str, ...]
    #: Whether this version comes with it; the others are planned.
    built: bool = False

    @property
    def install_command(self) -> str:
        """What a person types to get the backend."""
        return f"pip install synapse-host[{self.extra}]"


_APPLE_SILICON = ("darwin-arm64",)

_KNOWN = (
    KnownBackend("cpu", "synapse-host-owned-cpu", "cpu", "owned-cpu", "cpu", ("linux", "darwin"), built=True),
    KnownBackend("metal", "synapse-host-owned-metal", "metal", "owned-metal", "metal", _APPLE_SILICON, built=True),
    KnownBackend(
        "metal-decode",
        "synapse-host-owned-metal",
        "metal",
        "owned-metal-decode",
        "metal",
        _APPLE_SILICON,
        built=True,
    ),
    KnownBackend("ane", "synapse-host-ane", "ane", "ane-direct-worker", "ane", _APPLE_SILICON, built=True),
    KnownBackend("ane-coreml", "synapse-host-ane", "ane", "ane-coreml-worker", "ane", _APPLE_SILICON, built=True),
    KnownBackend("cuda", "synapse-host-owned-cuda", "cuda", "owned-cuda", "cuda", ("linux", "win32"), built=True),
    KnownBackend("vulkan", "synapse-host-vulkan", "vulkan", "owned-vulkan", "vulkan", ("linux", "win32"), built=True),
    KnownBackend(
        "llama", "synapse-host-llama-worker", "llama", "llama.cpp-worker", "cpu", ("linux", "darwin"), built=True
    ),
)

#: Backend id -> what is known of it without installing it.
KNOWN_BACKENDS = {known.backend: known for known in _KNOWN}

#: Engine -> the one backend that may call its engine so: the name decides what a worker must prove.
ENGINE_OWNERS = {known.engine: known.backend for known in _KNOWN}


#: Other names by which ``model.load`` knows backends (original facts 2.3).
ALIASES = {
    "onnx": "ort",
    "llama.cpp": "llama",
    "coreml": "ane",
    "neural_engine": "ane",
    "owned": "metal",
    "owned-decode": "metal-decode",
}


def current_platform() -> str:
    """The platform of this machine as ``<sys.platform>-<processor>``, for example ``linux-x86_64``."""
    return _normal(f"{sys.platform}-{platform.machine()}")


def supports_platform(platforms: Collection[str], machine: str) -> bool:
    """Whether one of ``platforms`` covers ``machine``.

    A platform is a ``sys.platform`` word (``linux``: any processor) or that word and a processor
    (``darwin-arm64``). No platform at all means everywhere.
    """
    covered = {_normal(name) for name in platforms}
    here = _normal(machine)
    return not covered or here in covered or here.partition("-")[0] in covered


def _normal(name: str) -> str:
    system, dash, machine = name.lower().partition("-")
    return f"{_SYSTEMS.get(system, system)}{dash}{_MACHINES.get(machine, machine)}"
