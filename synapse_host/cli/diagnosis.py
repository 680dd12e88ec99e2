"""What is wrong with a host's files and sockets, in words a person can act on. Needs no running host.

Nothing is changed but damaged content of the model cache, which is set aside where content is hashed.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from synapse_host.cache.disk_reserve import RESERVE_BYTES
from synapse_host.cli.cache_diagnosis import cache_findings
from synapse_host.cli.finding import Finding
from synapse_host.errors import SettingsInvalid
from synapse_host.settings import Settings, load_settings
from synapse_host.store.upkeep import faults_of

_CONNECT_S = 2.0
#: The run directory holds a lock, sockets and nothing that grows; it is often a small file system in memory.
_RUN_ROOM_BYTES = 64 * 1024


def diagnose(*, hash_content: bool) -> list[Finding]:
    """Every finding, in the order in which to read them; later ones are left out where the settings are unusable."""
    try:
        settings = load_settings()
    except SettingsInvalid as wrong:
        return [Finding("settings", False, str(wrong), "correct the value, then look again")]
    named = settings.paths.config_file
    found = [Finding("settings", True, f"{named} is in order" if named.exists() else f"no {named}: defaults")]
    for look in (_directories, _store, _socket):
        found += look(settings)
    return [*found, *cache_findings(settings, hash_content=hash_content)]


def _directories(settings: Settings) -> Iterator[Finding]:
    paths = settings.paths
    named = {
        "data directory": (paths.data_dir, RESERVE_BYTES),
        "cache directory": (paths.cache_dir, RESERVE_BYTES),
        "run directory": (paths.runtime_dir, _RUN_ROOM_BYTES),
    }
    if paths.cache_dir not in settings.model_cache.parents and not settings.model_cache.is_file():
        # A setting put it elsewhere, often on another disk. What is a file instead is told of with the cache.
        named["model cache directory"] = (settings.model_cache, RESERVE_BYTES)
    for subject, (path, room) in named.items():
        if path.exists() and not (path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK)):
            yield Finding(subject, False, f"{path} cannot be written", "give this user the right to write there")
        else:
            yield _room(subject, path, room)


def _room(subject: str, path: Path, needed: int) -> Finding:
    """Whether the disk of ``path``, which may not be there yet, has room for what is written below it."""
    free, can_make_files = _free(next(place for place in (path, *path.parents) if place.exists()))
    remedy = "make room on this disk, or choose another directory"
    if not can_make_files:
        return Finding(subject, False, f"the disk of {path} can hold no more files", remedy)
    if free < needed:
        return Finding(subject, False, f"{path} has {free} bytes free, fewer than {needed}", remedy)
    if not path.exists():
        return Finding(subject, True, f"{path} will be made, {free} bytes free")
    return Finding(subject, True, f"{path} can be written, {free} bytes free")


def _free(place: Path) -> tuple[int, bool]:
    """Free bytes for this user, and whether files can be made. A file system without inodes counts none at all."""
    facts = os.statvfs(place)
    return facts.f_bavail * facts.f_frsize, facts.f_files == 0 or facts.f_favail > 0


def _store(settings: Settings) -> Iterator[Finding]:
    path = settings.paths.store_file
    try:
        faults = faults_of(path)
    except FileNotFoundError:
        if _answers(settings.paths.host_socket) is None:
            seen = f"a host runs and its {path} is gone: what it is told to keep is refused"
            yield Finding("store", False, seen, "put the file back or restore a backup, then restart the host")
        else:
            yield Finding("store", True, f"no {path} yet")
        return
    if faults:
        yield Finding(
            "store", False, f"{path}: {'; '.join(faults)}", "stop the host, then restore the file or move it away"
        )
    else:
        yield Finding("store", True, f"{path} is whole")


def _socket(settings: Settings) -> Iterator[Finding]:
    path = settings.paths.host_socket
    if not path.exists():
        yield Finding("socket", True, f"no host runs: there is no {path}")
        return
    mode = stat.S_IMODE(path.lstat().st_mode)
    if mode & 0o077:
        yield Finding("socket", False, f"{path} is open to others (mode {mode:o})", f"chmod 600 {path}")
    fault = _answers(path)
    if fault is None:
        yield Finding("socket", True, f"a host answers on {path}")
    else:
        yield Finding("socket", False, f"{path} is there and nobody answers ({fault})", "start synapse-host serve")


def _answers(path: Path) -> OSError | None:
    """Why nobody answers on a socket; None where somebody does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            connection.connect(str(path))
        except OSError as fault:
            return fault
    return None
