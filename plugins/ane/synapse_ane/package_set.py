"""Package sets made elsewhere: one zipped ``.mlmodelc`` for each padded length, each held against its digest.

LOAD names them in ``artifact_paths`` and ``artifact_digests``, two JSON lists in strings; the first is the model's main
file, the others follow in order. A row goes to the smallest length that holds it, and one that no length holds is
refused, never cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from synapse_ane.package_archive import ArchiveLimits, extract
from synapse_host.hookspecs import PluginError
from synapse_host.model_files.compiled_package import PackageFault, PackageShape, package_shape

_HASHED_AT_ONCE = 1 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: Packages of a set. A ladder has seven rungs; the engine holds some hundred programs.
MOST_PACKAGES = 32
#: What all packages of a set may become. Each holds all weights: a ladder of the catalog's largest model has 9 GB.
SET_LIMITS = ArchiveLimits(bytes=32 << 30, whole="a set")


@dataclass(frozen=True, slots=True)
class Member:
    """One archive of a set and the digest it must have."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Package:
    """One compiled model on disk, what it says of itself, and the name of the file it came in."""

    name: str
    directory: Path
    shape: PackageShape

    @property
    def length(self) -> int:
        """Positions of a row."""
        return self.shape.length


def members_of(runtime_config: Mapping[str, str]) -> list[Member]:
    """The archives LOAD names.

    Raises:
        PluginError: config_invalid, where the two lists are missing, malformed or of different lengths.

    """
    paths, digests = (_strings(runtime_config, key) for key in ("artifact_paths", "artifact_digests"))
    if len(paths) != len(digests) or not paths:
        raise _bad_config(f"artifact_paths has {len(paths)} entries and artifact_digests {len(digests)}")
    if len(paths) > MOST_PACKAGES:
        raise _bad_config(f"artifact_paths has {len(paths)} entries and may have {MOST_PACKAGES}")
    for digest in digests:
        if not _DIGEST.fullmatch(digest):
            raise _bad_config(f"artifact_digests holds {digest!r}, which is no SHA-256 in lowercase hexadecimal")
    return [Member(Path(path), digest) for path, digest in zip(paths, digests, strict=True)]


def open_set(members: Sequence[Member], folder: Path) -> list[Package]:
    """Verify and unpack every archive below ``folder``; the packages by length.

    Raises:
        PluginError: artifact_invalid: a file is missing or not what its digest says, an archive lies, two packages have
            one length, or they do not take and give the same. Nothing is left below ``folder`` then.

    """
    packages: list[Package] = []
    left = SET_LIMITS
    for place, member in enumerate(members):
        target = folder / str(place)
        target.mkdir()
        packages.append(_open_member(member, target, _the_smaller(ArchiveLimits(), left)))
        left = _without(left, target)
    packages.sort(key=lambda package: package.length)
    _check_alike(packages)
    return packages


def package_for(packages: Sequence[Package], tokens: int) -> Package | None:
    """The smallest package that holds a row of ``tokens`` tokens; None where none does."""
    return next((package for package in packages if tokens <= package.length), None)


def _check_alike(packages: Sequence[Package]) -> None:
    lengths = [package.length for package in packages]
    if len(set(lengths)) != len(lengths):
        raise invalid_set(f"the set has two packages for one length: {lengths}")
    first = packages[0]
    for package in packages[1:]:
        if _signature(package) != _signature(first):
            raise invalid_set(
                f"{first.name} and {package.name} are not of one model: {_told(first)} against {_told(package)}"
            )


def _signature(package: Package) -> tuple[object, ...]:
    """What packages of one model have in common: the output's shape with the length of a row taken out."""
    shape = package.shape
    rows = tuple(
        "S" if axis == 1 and len(shape.output_shape) == 3 else size for axis, size in enumerate(shape.output_shape)
    )
    return shape.kinds, shape.output, rows


def _told(package: Package) -> str:
    kinds = " of texts told apart" if package.shape.kinds else ""
    return f"{package.length} positions{kinds} in, {package.shape.output!r} {list(package.shape.output_shape)} out"


def _the_smaller(package: ArchiveLimits, left: ArchiveLimits) -> ArchiveLimits:
    return left if left.bytes < package.bytes or left.files < package.files else package


def _without(left: ArchiveLimits, folder: Path) -> ArchiveLimits:
    """What is left of the limits of a set after the package below ``folder``."""
    sizes = [path.lstat().st_size for path in folder.rglob("*") if path.is_file()]
    return replace(left, files=left.files - len(sizes), bytes=left.bytes - sum(sizes))


def _open_member(member: Member, folder: Path, limits: ArchiveLimits) -> Package:
    name = member.path.name
    try:
        with _opened(member.path) as file, _room_for_a_copy(folder, name) as copy:
            found = _copied(file, copy, name, limits)
            if found != member.sha256:
                raise invalid_set(f"{name} has the digest {found} and should have {member.sha256}")
            directory = extract(copy, name, folder, limits)
        return Package(member.path.name, directory, package_shape((directory / "metadata.json").read_bytes()))
    except PackageFault as fault:
        raise invalid_set(f"{member.path.name} is no package of a set: {fault}") from fault
    except OSError as fault:
        raise invalid_set(f"{member.path.name} cannot be read: {fault}") from fault


def _opened(path: Path) -> IO[bytes]:
    # Without O_NONBLOCK a named pipe in the place of an archive would hang the worker.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise invalid_set(f"{path.name} is no regular file")
    return os.fdopen(descriptor, "rb")


def _room_for_a_copy(folder: Path, name: str) -> IO[bytes]:
    """A file without a name, which is gone when it is closed."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as fault:
        raise _no_room(name, fault) from fault


def _copied(file: IO[bytes], copy: IO[bytes], name: str, limits: ArchiveLimits) -> str:
    """SHA-256 of what is now in ``copy``. Whoever writes into the archive meanwhile, or later, writes into another."""
    digest = hashlib.sha256()
    size = os.fstat(file.fileno()).st_size
    if size > limits.bytes:
        raise invalid_set(f"{name} has {size} bytes, and {limits.bytes} are left of what {limits.whole} may have")
    left = size
    # One that grows while it is read is not the one that was meant.
    while left > 0 and (part := file.read(min(left, _HASHED_AT_ONCE))):
        left -= len(part)
        digest.update(part)
        try:
            copy.write(part)
        except OSError as fault:
            raise _no_room(name, fault) from fault
    copy.seek(0)
    return digest.hexdigest()


def _no_room(name: str, fault: OSError) -> PluginError:
    return PluginError("load_failed", f"{name} could not be unpacked: {fault}; free disk space")


def _strings(config: Mapping[str, str], key: str) -> list[str]:
    try:
        found = json.loads(config.get(key, "[]"))
    except (ValueError, RecursionError) as fault:
        raise _bad_config(f"{key} is no JSON list: {fault}") from fault
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise _bad_config(f"{key} is no JSON list of strings")
    return found


def _bad_config(message: str) -> PluginError:
    return PluginError("config_invalid", f"{message}; give a path and a digest for each package of the set")


def invalid_set(message: str) -> PluginError:
    """The refusal of a set: ``artifact_invalid``."""
    return PluginError("artifact_invalid", f"{message}; fetch the package set again from where it was published")
