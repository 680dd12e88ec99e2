"""Folders for what a model needs on disk while it is loaded, and for nothing else: gone with it, or with the next load.

A worker may be killed at any moment, and what it had unpacked is gigabytes. A folder is named after the process it
belongs to, so that whoever makes the next one can remove those of processes that are no more.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from synapse_host.hookspecs import PluginError


def scratch_folder(below: Path | None = None) -> Path:
    """A new, empty folder of this process, below one of this user's; the caller removes it.

    Raises:
        PluginError: load_failed, where somebody else's folder stands in the way, or the disk takes none.

    """
    root = (below or Path(tempfile.gettempdir())) / f"synapse-ane-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        held = root.lstat()
        if not stat.S_ISDIR(held.st_mode) or held.st_uid != os.getuid() or held.st_mode & 0o077:
            raise PluginError("load_failed", f"{root} is not a folder of this user alone; remove it")
        _remove_orphans(root)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    except OSError as fault:
        raise PluginError("load_failed", f"{root} takes no folder: {fault}; free disk space there") from fault


def _remove_orphans(root: Path) -> None:
    for folder in root.iterdir():
        owner = folder.name.partition("-")[0]
        if owner.isascii() and owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
