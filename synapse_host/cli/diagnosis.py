"""What is wrong with a host's files and sockets, in words a person can act on. Needs no running host.

Nothing is changed but damaged content of the model cache, which is set aside where content is hashed.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.known_hosts import KnownHost, known_hosts
from synapse_host.cache.layout import CacheLayout
from synapse_host.cli.cache_commands import states_of
from synapse_host.cli.cache_hosts import said_of
from synapse_host.cli.local_cache import id_of_home
from synapse_host.errors import SettingsInvalid, StoreFailure
from synapse_host.settings import Settings, load_settings
from synapse_host.store.upkeep import faults_of, installed_files

_CONNECT_S = 2.0
#: Bytes that have to be free for the store and its journal to grow by a job, or for the cache to take a small model.
_ROOM_BYTES = 64 * 1024 * 1024
#: The run directory holds a lock, sockets and nothing that grows; it is often a small file system in memory.
_RUN_ROOM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict: what was looked at, whether it is well, what was seen, and what to do where it is not."""

    subject: str
    ok: bool
    seen: str
    remedy: str | None = None

    def to_json(self) -> dict[str, object]:
        """The finding as a document."""
        return asdict(self)


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
    return [*found, *_cache(settings, hash_content)]


def _directories(settings: Settings) -> Iterator[Finding]:
    paths = settings.paths
    named = {
        "data directory": (paths.data_dir, _ROOM_BYTES),
        "cache directory": (paths.cache_dir, _ROOM_BYTES),
        "run directory": (paths.runtime_dir, _RUN_ROOM_BYTES),
    }
    if paths.cache_dir not in settings.model_cache.parents and not settings.model_cache.is_file():
        # A setting put it elsewhere, often on another disk. What is a file instead is told of with the cache.
        named["model cache directory"] = (settings.model_cache, _ROOM_BYTES)
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


def _cache(settings: Settings, hash_content: bool) -> Iterator[Finding]:
    root = settings.model_cache
    if not root.exists():
        yield Finding("model cache", True, f"no {root} yet")
        return
    cache = BlobCache(CacheLayout(root), "synapse-opctl")
    try:
        cache.layout.prepare()
        digests = cache.layout.digests()
        yield Finding("model cache", True, f"{root} holds {len(digests)} files, {_bytes_in(cache.layout.blobs)} bytes")
        yield from _records(cache, digests)
        if hash_content:
            yield _content(cache, digests)
        yield from _installed(settings, cache)
        yield from _set_aside(cache.layout.quarantine)
        yield from _sharing(settings, cache)
    except (StoreFailure, OSError) as failure:
        yield Finding("model cache", False, str(failure), "see the message")


def _content(cache: BlobCache, digests: list[str]) -> Finding:
    bad = [_told(digest, state) for digest, state in states_of(cache, digests) if state != "whole"]
    if not bad:
        return Finding("cached content", True, f"{len(digests)} files are what their digests say")
    return Finding("cached content", False, "; ".join(bad), "download the models they belong to again")


def _records(cache: BlobCache, digests: list[str]) -> Iterator[Finding]:
    """One finding for every record that cannot be read: while it is there nothing is collected or removed."""
    for digest in digests:
        try:
            cache.find(digest)
        except StoreFailure as failure:
            yield _unreadable(failure)


def _unreadable(failure: StoreFailure) -> Finding:
    told, _, remedy = failure.message.rpartition("; ")
    return Finding("cache record", False, told, remedy)


def _told(digest: str, state: str) -> str:
    return f"{digest} is {state}" + (", and was set aside in quarantine just now" if state == "damaged" else "")


def _installed(settings: Settings, cache: BlobCache) -> Iterator[Finding]:
    files = installed_files(settings.paths.store_file)
    lost = [file for file in files if not _is_present(cache.path(file.sha256), file.size)]
    models = sorted({file.catalog_id for file in files})
    if lost:
        named = ", ".join(f"{file.name} of {file.catalog_id}" for file in lost)
        remedy = "; ".join(
            f"synapse-host models download {name}" for name in sorted({file.catalog_id for file in lost})
        )
        yield Finding("installed models", False, f"missing or of another size: {named}", remedy)
    elif models:
        yield Finding("installed models", True, f"every file of {', '.join(models)} is here")


def _is_present(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size == size


def _set_aside(quarantine: Path) -> Iterator[Finding]:
    names = sorted(path.name for path in quarantine.iterdir())
    if names:
        yield Finding(
            "quarantine", False, f"{quarantine} holds {len(names)} damaged files", "look at the disk, then remove them"
        )


def _sharing(settings: Settings, cache: BlobCache) -> Iterator[Finding]:
    """The other hosts this cache keeps content for, and what to do about one that is no more."""
    try:
        own = id_of_home(settings.paths.data_dir)
    except StoreFailure:
        own = None  # told with the store
    try:
        found = known_hosts(cache.layout, id_of_home)
    except StoreFailure as failure:
        # A broken record of content was told before.
        if str(cache.layout.hosts) in failure.message:
            yield _unreadable(failure)
        return
    for known in found:
        if known.host != own and known.pinned_files:
            remedy = _remedy_of(known)
            yield Finding("host of the cache", remedy is None, said_of(known), remedy)


def _remedy_of(known: KnownHost) -> str | None:
    forget = f"synapse-opctl cache forget {known.host}"
    if known.state == "gone":
        return f"where it will not come back: {forget}; then synapse-opctl cache gc"
    if known.state == "unknown":
        return f"start that host once; where it is no more: {forget} --force, then synapse-opctl cache gc"
    return None


def _bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())
