"""Holds the engines of the shipped catalog document against the plugins of this checkout.

    python scripts/refresh_catalog_engines.py [BACKEND...]     writes what the plugins say, and the pins that follow
    python scripts/refresh_catalog_engines.py --check [...]    changes nothing; exits 1 where the document differs

A change of a family, an operation or a plugin's kernels is a change of its kernel revision and with it of every pin:
run this then. Nothing has to be installed; a plugin's version is read from its project file.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "synapse_host" / "catalog" / "catalog.json"
#: Backend -> the project it is in and its plugin module.
PLUGINS = {
    "metal": ("owned_metal", "synapse_owned_metal.plugin"),
    "ane": ("ane", "synapse_ane.plugin"),
    "cuda": ("owned_cuda", "synapse_owned_cuda.plugin"),
    "vulkan": ("vulkan", "synapse_vulkan.plugin"),
}


def described(backend: str, unpinned: list[str]) -> dict[str, Any]:
    """The engine row of a backend as its plugin has it, without the flags that are not pinned."""
    project, module = PLUGINS[backend]
    sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / project)]
    told = tomllib.loads((ROOT / "plugins" / project / "pyproject.toml").read_text("utf-8"))["project"]
    known = importlib.metadata.version
    importlib.metadata.version = lambda name: told["version"] if name == told["name"] else known(name)
    try:
        describe = importlib.import_module(module).synapse_describe
        settings = {"settings": {}} if "settings" in inspect.signature(describe).parameters else {}
        description = describe(**settings)
    finally:
        importlib.metadata.version = known
    return {
        "engine": description.engine,
        "version": description.engine_version,
        "build_flags": {name: value for name, value in description.build_flags.items() if name not in unpinned},
        "kernel_revision": description.kernel_revision,
        "manifest_digest": description.manifest_digest,
        "unpinned_flags": unpinned,
    }


def main() -> int:
    """Write or compare; the exit status says whether the document was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and change nothing")
    parser.add_argument("backends", nargs="*", help="default: all of them")
    arguments = parser.parse_args()
    check, backends = arguments.check, arguments.backends or list(PLUGINS)
    document = json.loads(DOCUMENT.read_text("utf-8"))
    engines = document["engines"]
    now = {backend: described(backend, engines[backend]["unpinned_flags"]) for backend in backends}
    differing = [backend for backend, engine in now.items() if engine != engines[backend]]
    for backend in differing:
        sys.stdout.write(f"{backend}: the document has {engines[backend]}\n{backend}: the plugin says {now[backend]}\n")
    if check or not differing:
        return 1 if differing else 0
    document["engines"].update(now)
    DOCUMENT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, ROOT / "scripts" / "catalog_pins.py", "--write"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
