"""A zipped ``.mlmodelc`` brought to disk: nothing outside its folder, no more than it says, or nothing at all.

An archive comes from somewhere else. Its names, its sizes and its links are claims: names are held against the folder,
sizes are counted while bytes come out, and links are refused.
"""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from synapse_host.hookspecs import PluginError

#: Kind of the folder an archive holds.
SUFFIX = ".mlmodelc"
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The most an archive may become. The largest model of the catalog is 1.2 GB in half precision."""

    files: int = 10_000
    bytes: int = 8 << 30
    #: Uncompressed bytes for one compressed: weights hardly compress, and a bomb is made of nothing else.
    ratio: int = 200


def extract(archive: IO[bytes], name: str, folder: Path, limits: ArchiveLimits | None = None) -> Path:
    """Write the one ``.mlmodelc`` of ``archive`` below ``folder``, which must be empty; its path.

    Raises:
        PluginError: artifact_invalid, naming the archive, the member and what is wrong; ``folder`` is empty then.

    """
    try:
        return _extract(archive, name, folder, limits or ArchiveLimits())
    except BaseException:
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise


def _extract(archive: IO[bytes], name: str, folder: Path, limits: ArchiveLimits) -> Path:
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            root = _checked_root(members, name, limits)
            left = limits.bytes
            for member in members:
                left -= _write(opened, member, folder / member.filename, name, left)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zipfile.LargeZipFile) as fault:
        raise _invalid(f"{name} is no zip archive this program reads: {fault}") from fault
    return folder / root


def _checked_root(members: Sequence[zipfile.ZipInfo], name: str, limits: ArchiveLimits) -> str:
    """The name of the only folder at the top, after a look at every name and claimed size."""
    if len(members) > limits.files:
        raise _invalid(f"{name} holds {len(members)} files and may hold {limits.files}")
    seen: set[str] = set()
    roots: set[str] = set()
    for member in members:
        parts = _checked_parts(member, name)
        # Two members of one name, and two whose names differ in case alone on a disk that does not tell them apart.
        if member.filename.casefold() in seen:
            raise _invalid(f"{name} holds {member.filename!r} twice")
        seen.add(member.filename.casefold())
        roots.add(parts[0])
    claimed = sum(member.file_size for member in members)
    stored = sum(member.compress_size for member in members)
    if claimed > limits.bytes or claimed > limits.ratio * max(stored, 1):
        raise _invalid(f"{name} would grow from {stored} to {claimed} bytes, past what a model does")
    if len(roots) != 1 or not next(iter(roots)).endswith(SUFFIX):
        raise _invalid(f"{name} holds {', '.join(sorted(roots)) or 'nothing'}; expected is one {SUFFIX} folder")
    return roots.pop()


def _checked_parts(member: zipfile.ZipInfo, name: str) -> tuple[str, ...]:
    path = PurePosixPath(member.filename)
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _invalid(f"{name} holds {member.filename!r}, which is neither a file nor a folder")
    unsafe = path.is_absolute() or "\\" in member.filename or ":" in member.filename or "\0" in member.filename
    if unsafe or not path.parts or any(part in ("..", ".") for part in path.parts):
        raise _invalid(f"{name} holds {member.filename!r}, which leads outside of its folder")
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
