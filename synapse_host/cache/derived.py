"""What engines make of content and want to find again: compiled packages, below the content they were made of.

``derived/<source>/<toolchain>`` belongs to one model file and one engine with all its flags. ``packages`` in it is the
folder a worker writes to; ``record.json`` says what of it is known to be whole, file by file. A record is written when
the worker has ended. What is in the folder and not in its record, or not as the record has it, is removed before
anybody sees it again: a worker that was killed may have left half of a package.

Packages have no pins. They go with their source, and before it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from synapse_host.cache.durable_files import remove_durably, sync_directory, write_durably
from synapse_host.cache.layout import CacheLayout, is_digest, unusable
from synapse_host.cache.locks import ReadLease, change_lock, exclusive_lease
from synapse_host.cache.metadata import read_metadata
from synapse_host.errors import ArtifactInvalid
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.model_files.source_files import digest_file

_VERSION = 1
RECORD, PACKAGES, CLAIM = "record.json", "packages", "claim.lock"


class DerivedClaim:
    """The right of one worker to the packages of one source and toolchain; its source stays while it is held.

    ``folder`` is where they are and are to be put. ``keep`` when the worker has ended, ``release`` in any case.
    """

    def __init__(self, place: Path, about: Mapping[str, Any], lease: ReadLease, descriptor: int) -> None:
        self.folder = place / PACKAGES
        self._record = place / RECORD
        self._about = about
        self._lease = lease
        self._descriptor = descriptor

    def keep(self) -> None:
        """Record what is there now as whole. Blocks: everything is hashed, and on the disk, when this returns.

        Raises:
            StoreFailure: the cache cannot be read or written; nothing more is known to be whole than was.

        """
        try:
            files = {name: _made_durable(self.folder / name) for name in _files_in(self.folder)}
            for directory in _directories_in(self.folder):
                sync_directory(directory)
            write_durably(self._record, _record(self._about, files))
        except ArtifactInvalid as gone:
            raise unusable(self.folder, OSError(None, gone.message)) from gone
        except OSError as problem:
            raise unusable(self.folder, problem) from problem

    def release(self) -> None:
        """Give the folder up; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._lease.release()

    def __enter__(self) -> DerivedClaim:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(layout: CacheLayout, source: str, toolchain: Mapping[str, Any]) -> DerivedClaim | None:
    """The packages made of ``source`` by ``toolchain``, those alone that are as their record says. Blocks.

    None where the source is not in the cache, or another worker has the folder, of this host or of one that shares it.

    Raises:
        StoreFailure: the cache cannot be read or written.

    """
    about = {"version": _VERSION, "source": source, "toolchain": dict(toolchain)}
    place = layout.derived / source / sha256_hex(canonical_json(dict(toolchain)))
    try:
        with change_lock(layout):
            metadata = read_metadata(layout, source)
            if metadata is None or not metadata.valid or not layout.blob(source).is_file():
                return None
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _locked(place / CLAIM)
            if descriptor is None:
                return None
            lease = ReadLease(layout, source)
        held = DerivedClaim(place, about, lease, descriptor)
        try:
            _put_right(place, about)
        except BaseException:
            held.release()
            raise
    except OSError as problem:
        raise unusable(layout.root, problem) from problem
    return held


def remove_derived(layout: CacheLayout, source: str) -> int:
    """Remove every package made of ``source``; the freed bytes. The caller has the change lock and the source alone."""
    return sum(_discard(place) for place in _places(layout.derived / source)) + _remove_empty(layout.derived / source)


def remove_orphans(layout: CacheLayout) -> None:
    """Remove packages whose source is gone; the caller holds the change lock."""
    for folder in _children(layout.derived):
        if is_digest(folder.name) and not layout.blob(folder.name).exists():
            with exclusive_lease(layout, folder.name) as alone:
                if alone:
                    remove_derived(layout, folder.name)


def derived_bytes(layout: CacheLayout) -> int:
    """Bytes that packages take, those of records left out."""
    places = (place for folder in _children(layout.derived) for place in _places(folder))
    return sum(_size(place / PACKAGES) for place in places)


def _put_right(place: Path, about: Mapping[str, Any]) -> None:
    """Remove what the record does not vouch for; without a record of just this, all of it."""
    packages = place / PACKAGES
    packages.mkdir(mode=0o700, exist_ok=True)
    known = _known_files(place / RECORD, about)
    doubtful = {name.partition("/")[0] for name in _files_in(packages) if not _is_as(packages / name, known.get(name))}
    missing = {name.partition("/")[0] for name in known if not (packages / name).is_file()}
    for entry in _children(packages):
        if entry.is_symlink() or entry.name in doubtful | missing or not any(_files_of(entry)):
            _remove_tree(entry)


def _known_files(record: Path, about: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    try:
        document = json.loads(record.read_bytes())
        files = document.pop("files")
        return {name: (size, sha256) for name, (size, sha256) in files.items()} if document == about else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _record(about: Mapping[str, Any], files: Mapping[str, tuple[int, str]]) -> bytes:
    return json.dumps({**about, "files": files}, sort_keys=True, indent=1).encode() + b"\n"


def _is_as(path: Path, known: tuple[int, str] | None) -> bool:
    if known is None or path.is_symlink() or path.stat().st_size != known[0]:
        return False
    try:
        return digest_file(path).sha256 == known[1]
    except ArtifactInvalid:
        return False


def _made_durable(path: Path) -> tuple[int, str]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    found = digest_file(path)
    return found.size, found.sha256


def _discard(place: Path) -> int:
    """The record goes first: a death in between must leave nothing that looks whole."""
    freed = _size(place / PACKAGES)
    remove_durably(place / RECORD)
    shutil.rmtree(place)
    return freed


def _remove_empty(folder: Path) -> int:
    if folder.exists():
        folder.rmdir()
    return 0


def _remove_tree(entry: Path) -> None:
    if entry.is_symlink() or not entry.is_dir():
        entry.unlink()
    else:
        shutil.rmtree(entry)


def _locked(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _places(folder: Path) -> list[Path]:
    return [place for place in _children(folder) if place.is_dir()]


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _files_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in _files_of(folder)]


def _files_of(entry: Path) -> Iterator[Path]:
    """Every file and link at and below ``entry``, links not followed."""
    if entry.is_symlink() or not entry.is_dir():
        yield entry
        return
    for child in _children(entry):
        yield from _files_of(child)


def _directories_in(folder: Path) -> Iterator[Path]:
    yield folder
    for child in _children(folder):
        if child.is_dir() and not child.is_symlink():
            yield from _directories_in(child)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in _files_of(folder)) if folder.is_dir() else 0
