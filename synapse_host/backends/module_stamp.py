"""When a plugin's code last changed, read from the disk without importing any of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path

#: The stamp of a module that no finder knows.
MISSING = "missing"


def module_stamp(module: str) -> str:
    """A word that changes when the module's file, or a Python file beside it in its package, changes.

    An editable install keeps its RECORD while its source moves on, so times and sizes of the files stand in for it.
    ``importlib.util.find_spec`` would import the parent packages; this asks the finders level by level instead.
    """
    spec = _find(module)
    if spec is None or not spec.origin or not spec.has_location:
        return MISSING
    origin = Path(spec.origin)
    in_package = "." in module or spec.submodule_search_locations is not None
    entries = [_entry(path) for path in (_siblings(origin) if in_package else (origin,))]
    return sha256("\n".join(sorted(entries)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _find(module: str) -> ModuleSpec | None:
    spec: ModuleSpec | None = None
    search: Sequence[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _ask_finders(name, search)
        if spec is None:
            return None
        search = spec.submodule_search_locations if spec.submodule_search_locations is not None else ()
    return spec


def _ask_finders(name: str, search: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, search)
        except Exception:  # noqa: S112 - a broken finder of some other package must not stop the listing
            continue
        if spec is not None:
            return spec
    return None


def _siblings(origin: Path) -> Iterator[Path]:
    yield origin
    try:
        names = os.listdir(origin.parent)  # noqa: PTH208 - names alone, a stat follows
    except OSError:
        return
    for name in names:
        if name.endswith((".py", ".so", ".pyd")) and name != origin.name:
            yield origin.parent / name


def _entry(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path} gone"
    return f"{path} {status.st_mtime_ns} {status.st_size}"
