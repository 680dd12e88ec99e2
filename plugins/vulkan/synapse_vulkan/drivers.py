"""Where the Vulkan loader finds drivers, and what makes it and them show another device.

Source of the places on Linux: "Driver discovery" in the Vulkan loader's LoaderDriverInterface. On Windows drivers stand
in the registry; there only the environment is named.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from synapse_host.hookspecs import Premises

#: Variables of the loader, of Mesa and of the drivers that choose, hide, rename or reshape devices.
ENVIRONMENT = (
    "VK_*",
    "MESA_*",
    "NODEVICE_SELECT",
    "AMD_VULKAN_ICD",
    "DRI_PRIME",
    "LP_*",
    "RADV_*",
    "ANV_*",
    "NVK_*",
    "__NV_PRIME_RENDER_OFFLOAD*",
    "LD_LIBRARY_PATH",
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_HOME",
    "XDG_DATA_DIRS",
)
#: Variables that name manifests, or folders of them, in the place of the system's.
_INSTEAD = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
#: One that names manifests beside the system's.
_BESIDE = "VK_ADD_DRIVER_FILES"
#: Paths named at most: a report of evidence has a size.
_MOST = 24


def premises(environ: Mapping[str, str], kernels: Path) -> Premises:
    """What decides which device the loader shows: variables, folders of manifests, manifests, drivers; and ``kernels``.

    A driver whose manifest gives a bare library name is known by its manifest alone.
    """
    places = [path for path in _places(environ) if path.is_absolute()]
    found = [kernels, *places, *_libraries(places)]
    return Premises(ENVIRONMENT, tuple(islice(dict.fromkeys(map(str, found)), _MOST)))


def _places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Manifests and folders of them, in the loader's order."""
    yield from _listed(environ.get(_BESIDE))
    for name in _INSTEAD:
        if environ.get(name):
            yield from _listed(environ[name])
            return
    if os.name == "posix":
        yield from (Path(root) / "vulkan" / "icd.d" for root in _roots(environ) if root)


def _roots(environ: Mapping[str, str]) -> Iterator[str]:
    home = environ.get("HOME", "")
    yield environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")
    yield from (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    yield from ("/usr/local/etc", "/etc")
    yield environ.get("XDG_DATA_HOME") or (home and f"{home}/.local/share")
    yield from (environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(os.pathsep)


def _listed(value: str | None) -> Iterator[Path]:
    yield from map(Path, filter(None, (value or "").split(os.pathsep)))


def _libraries(places: list[Path]) -> Iterator[Path]:
    for place in places:
        for manifest in sorted(place.glob("*.json")) if place.is_dir() else [place]:
            library = _library(manifest)
            if library is not None:
                yield library


def _library(manifest: Path) -> Path | None:
    """The driver that ``manifest`` names by a path; None for a bare name and for a manifest that cannot be read."""
    try:
        named = json.loads(manifest.read_text(encoding="utf-8"))["ICD"]["library_path"]
        return manifest.parent / named if os.sep in named else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
