"""Model files named by a request: found strictly inside the directory the request gave, and digested.

Reading 13 of the contract: names are relative, hold no ``..``, and whatever they link to lies inside too. A snapshot in
the Hugging Face hub cache is all links to ``blobs`` beside it, so there "inside" is the cache folder of its repository.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.identity.digests import sha256_file


@dataclass(frozen=True, slots=True)
class FileDigest:
    """SHA-256 as lowercase hex, and the size in bytes that was hashed."""

    sha256: str
    size: int


def resolve_inside(root: Path, name: str) -> Path:
    """The real path of the regular file ``name`` below the directory ``root``.

    Raises:
        InvalidRequest: the name is blank, absolute, has ``..``, or leads out of ``root`` or to something that is no
            regular file; details ``file``. Or ``root`` is no directory; details ``path``.
        ArtifactInvalid: there is no such file; details ``file``.

    """
    _check_name(name)
    directory = _real_directory(root)
    try:
        # os.path, because Path.resolve reports a loop of links differently between Python versions.
        target = Path(os.path.realpath(directory / name, strict=True))
        mode = target.stat().st_mode
    except FileNotFoundError as error:
        raise _unusable(name, f"does not exist in {directory}", "restore it or correct the name") from error
    except (OSError, ValueError) as error:
        raise _refused(name, f"cannot be reached in {directory}: {error}", "correct the name or its links") from error
    if not any(target.is_relative_to(folder) for folder in _enclosures(directory)):
        raise _refused(name, f"leads to {target}, outside {directory}", "copy the file itself into the directory")
    if not stat.S_ISREG(mode):
        raise _refused(name, f"is no regular file in {directory}", "name a file")
    return target


def digest_file(path: Path) -> FileDigest:
    """The digest and size of a regular file, both taken from one open descriptor.

    Raises:
        ArtifactInvalid: it cannot be opened or read, is no regular file, or changed its size meanwhile; details
            ``file``.

    """
    with open_regular(path) as descriptor:
        return _digest(path, descriptor)


def read_file(path: Path, *, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes.

    Raises:
        ArtifactInvalid: it cannot be opened or read, is no regular file, or is larger; details ``file``.

    """
    with open_regular(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _unusable(path.name, f"is larger than {limit} bytes", "use the file published with the model")
    return data


@contextmanager
def open_regular(path: Path) -> Iterator[int]:
    """A read-only descriptor of a regular file for the length of the block.

    Raises:
        ArtifactInvalid: it cannot be opened, is no regular file, or reading it in the block failed; details ``file``.

    """
    try:
        # Without O_NONBLOCK a FIFO put in the file's place would stop the host here.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unusable(path.name, f"cannot be opened: {error}", "restore it or its permissions") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unusable(path.name, "is no regular file", "restore it")
        yield descriptor
    except OSError as error:
        raise _unusable(path.name, f"cannot be read: {error}", "restore it") from error
    finally:
        os.close(descriptor)


def require_digest(name: str, actual: FileDigest, expected_sha256: str) -> None:
    """Hold a file against the digest it was promised to have.

    Raises:
        ArtifactInvalid: they differ; details ``file``, ``expected_sha256``, ``actual_sha256`` and ``actual_size``.

    """
    if actual.sha256 == expected_sha256.lower():
        return
    raise ArtifactInvalid(
        f"file {name!r} has sha256 {actual.sha256}, not {expected_sha256}; restore it or correct the digest",
        details={
            "file": name,
            "expected_sha256": expected_sha256,
            "actual_sha256": actual.sha256,
            "actual_size": actual.size,
        },
    )


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or "\0" in name:
        raise _refused(name, "is no file name", "give a name relative to path")
    if PurePosixPath(name).is_absolute():
        raise _refused(name, "is absolute", "give a name relative to path")
    if ".." in parts:
        raise _refused(name, "climbs out with '..'", "give a name below path")


def _real_directory(root: Path) -> Path:
    try:
        directory = Path(os.path.realpath(root, strict=True))
    except (OSError, ValueError) as error:
        raise _no_directory(root, f"cannot be reached: {error}") from error
    if not directory.is_dir():
        raise _no_directory(root, "is no directory")
    return directory


def _enclosures(directory: Path) -> list[Path]:
    """Where files of ``directory`` may really lie: in it, or in the blobs of the hub cache it is a snapshot of."""
    snapshots = directory.parent
    repository = snapshots.parent
    is_snapshot = snapshots.name == "snapshots" and repository.name.startswith("models--")
    return [directory, repository / "blobs"] if is_snapshot else [directory]


def _digest(path: Path, descriptor: int) -> FileDigest:
    size = os.fstat(descriptor).st_size
    digest = sha256_file(descriptor)
    if os.fstat(descriptor).st_size != size:
        raise _unusable(path.name, "changed its size while it was read", "load it when nothing writes to it")
    return FileDigest(digest, size)


def _refused(name: str, fault: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"file {name!r} {fault}; {remedy}", details={"file": name})


def _unusable(name: str, fault: str, remedy: str) -> ArtifactInvalid:
    return ArtifactInvalid(f"file {name!r} {fault}; {remedy}", details={"file": name})


def _no_directory(root: Path, fault: str) -> InvalidRequest:
    return InvalidRequest(
        f"path {str(root)!r} {fault}; give the directory that holds the model's files", details={"path": str(root)}
    )
