"""A zipped ``.mlmodelc`` brought to disk: nothing outside its folder, no more than it says, or nothing at all.

An archive comes from somewhere else. Its names, its sizes and its links are claims: names are held against the folder
and against each other, sizes are counted while bytes come out, and links are refused. What is in a member is not looked
at: an archive inside of an archive stays one file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import unicodedata
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from synapse_host.hookspecs import PluginError
from synapse_host.model_files.compiled_package import (
    METHODS,
    MOST_FILES,
    SUFFIX,
    PackageFault,
    archive_faults,
    check_entry_count,
)

_COPY_BYTES = 1 << 20
#: What a Mac's own archiver adds: a folder of resource forks at the top, and how a window was laid out anywhere.
_MAC_FOLDER, _MAC_FILE = "__MACOSX", ".DS_Store"
#: Folders in folders; a compiled model has two.
_DEEPEST = 16
#: What a disk says of a name, not of itself.
_OF_NAMES = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The most an archive may become. The largest model of the catalog is 1.2 GB in half precision.

    ``whole`` is what the limits are of.
    """

    files: int = MOST_FILES
    bytes: int = 8 << 30
    #: Bytes that come out for one of the archive: weights hardly compress, and a bomb is made of nothing else.
    ratio: int = 200
    whole: str = "a package"


def extract(archive: IO[bytes], name: str, folder: Path, limits: ArchiveLimits | None = None) -> Path:
    """Write the one ``.mlmodelc`` of ``archive`` below ``folder``, which must be empty; its path.

    What a Mac's archiver adds of its own is not written.

    Raises:
        PluginError: artifact_invalid, naming the archive, the member and what is wrong, or load_failed where the disk
            takes no more; ``folder`` is empty then.

    """
    try:
        return _extract(archive, name, folder, limits or ArchiveLimits())
    except BaseException:
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise


def _extract(archive: IO[bytes], name: str, folder: Path, limits: ArchiveLimits) -> Path:
    try:
        check_entry_count(archive)
        with zipfile.ZipFile(archive) as opened:
            members = _of_the_package(opened.infolist(), name, limits)
            root = _checked_root(members, name)
            _check_sizes(members, name, limits, archive.seek(0, os.SEEK_END))
            left = limits.bytes
            for member in members:
                left -= _write(opened, member, folder / member.filename, name, left)
    except PackageFault as fault:
        raise _invalid(f"{name} is no package of a set: {fault}") from fault
    except UnicodeError as fault:
        raise _invalid(f"{name} holds a name no disk takes: {fault}") from fault
    except archive_faults() as fault:
        raise _invalid(f"{name} is no zip archive this program reads: {fault}") from fault
    except OSError as fault:
        if fault.errno in _OF_NAMES:
            raise _invalid(f"{name} holds {fault.filename!r:.200}, which the disk does not take: {fault}") from fault
        raise PluginError("load_failed", f"{name} could not be unpacked: {fault}; free disk space") from fault
    return folder / root


def _of_the_package(members: Sequence[zipfile.ZipInfo], name: str, limits: ArchiveLimits) -> list[zipfile.ZipInfo]:
    if len(members) > limits.files:
        raise _invalid(f"{name} holds {len(members)} files and may hold {limits.files} of those of {limits.whole}")
    return [member for member in members if not _is_a_macs_own(member.filename.split("/"))]


def _is_a_macs_own(parts: Sequence[str]) -> bool:
    return parts[0] == _MAC_FOLDER or parts[-1] == _MAC_FILE


def _checked_root(members: Sequence[zipfile.ZipInfo], name: str) -> str:
    """The name of the only folder at the top, after a look at every name."""
    seen = _Names(name)
    for member in members:
        parts = _checked_parts(member, name)
        seen.add(parts, is_folder=member.is_dir())
    roots = seen.roots
    if len(roots) != 1 or not roots[0].endswith(f"{SUFFIX}/"):
        found = ", ".join(roots)[:200] or "nothing"
        raise _invalid(f"{name} holds {found}; expected is one {SUFFIX} folder, zipped itself and nothing beside it")
    return roots[0].rstrip("/")


def _check_sizes(members: Sequence[zipfile.ZipInfo], name: str, limits: ArchiveLimits, size: int) -> None:
    # Against the size of the whole file: members may share their compressed bytes, and say so of none of them.
    claimed = sum(member.file_size for member in members)
    if claimed > limits.ratio * size:
        raise _invalid(f"{name} would grow from {size} to {claimed} bytes, past what a model does")
    if claimed > limits.bytes:
        raise _invalid(
            f"{name} would grow from {size} to {claimed} bytes, and {limits.bytes} are left of what {limits.whole} "
            "may have"
        )


class _Names:
    """The names of one archive as a disk sees them that tells neither cases nor spellings of one letter apart."""

    def __init__(self, archive: str) -> None:
        self._archive = archive
        #: Folded path -> (as it was spelled, whether it is a folder that holds others).
        self._seen: dict[tuple[str, ...], tuple[tuple[str, ...], bool]] = {}

    @property
    def roots(self) -> list[str]:
        """Names at the top, those of folders with a slash at the end."""
        tops = [(spelled[0], is_folder) for spelled, is_folder in self._seen.values() if len(spelled) == 1]
        return sorted(f"{name}/" if is_folder else name for name, is_folder in tops)

    def add(self, parts: tuple[str, ...], *, is_folder: bool) -> None:
        """Take note of a member and the folders it lies in; raises ``PluginError`` where it meets another."""
        for depth in range(1, len(parts)):
            self._note(parts[:depth], is_folder=True)
        self._note(parts, is_folder=is_folder)

    def _note(self, parts: tuple[str, ...], *, is_folder: bool) -> None:
        folded = tuple(unicodedata.normalize("NFKD", part.casefold()) for part in parts)
        known = self._seen.get(folded)
        if known is not None and not (is_folder and known == (parts, True)):
            raise _invalid(f"{self._archive} holds {'/'.join(parts)!r:.200} twice, or as a file and as a folder")
        self._seen[folded] = (parts, is_folder)


def _checked_parts(member: zipfile.ZipInfo, name: str) -> tuple[str, ...]:
    spelled = member.filename
    if not spelled:
        raise _invalid(f"{name} holds a member without a name")
    path = PurePosixPath(spelled)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and not member.is_dir()):
        raise _invalid(f"{name} holds {spelled!r:.200}, which is neither a file nor a folder")
    unsafe = path.is_absolute() or any(sign in spelled for sign in "\\:") or not spelled.isprintable()
    if unsafe or not path.parts or any(part in ("", "..", ".") for part in spelled.rstrip("/").split("/")):
        raise _invalid(f"{name} holds {spelled!r:.200}, which leads outside of its folder")
    if len(path.parts) > _DEEPEST:
        raise _invalid(f"{name} holds {spelled!r:.200}, {len(path.parts)} folders deep")
    if member.compress_type not in METHODS:
        raise _invalid(f"{name} holds {spelled!r:.200}, packed by method {member.compress_type}")
    return path.parts


def _write(opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, name: str, left: int) -> int:
    """Write one member; the bytes it took."""
    if member.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with opened.open(member) as source, target.open("xb") as file:
        while part := source.read(_COPY_BYTES):
            written += len(part)
            if written > min(left, member.file_size):
                raise _invalid(f"{name} says {member.filename!r} has {member.file_size} bytes, and it has more")
            file.write(part)
    return written


def _invalid(message: str) -> PluginError:
    return PluginError("artifact_invalid", f"{message}; fetch the package set again from where it was published")
