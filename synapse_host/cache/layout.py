"""Where the model cache keeps what, and what its files are called.

``blobs`` holds content under its digest and nothing else; ``metadata`` a document for each; ``leases`` the files
readers lock; ``incoming`` what is being written; ``quarantine`` content that turned out not to be what its name says;
``derived`` what engines compiled of content; ``hosts`` who shares the cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path

from synapse_host.errors import InvalidRequest, StoreFailure
from synapse_host.values import value_object

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
#: Errors of whoever may not write.
_UNWRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
#: Errors by which a file system says that it has no locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


@value_object
class CacheLayout:
    """The directories of one cache, which several hosts may share."""

    root: Path

    @property
    def blobs(self) -> Path:
        """Content, one file per digest."""
        return self.root / "blobs"

    @property
    def metadata(self) -> Path:
        """What is known of each blob."""
        return self.root / "metadata"

    @property
    def leases(self) -> Path:
        """Files that readers hold a shared lock on."""
        return self.root / "leases"

    @property
    def incoming(self) -> Path:
        """Files being written."""
        return self.root / "incoming"

    @property
    def quarantine(self) -> Path:
        """Content set aside because it is not what its name says."""
        return self.root / "quarantine"

    @property
    def derived(self) -> Path:
        """Packages made of content, by the digest of what they were made of."""
        return self.root / "derived"

    @property
    def hosts(self) -> Path:
        """Who shares the cache."""
        return self.root / "hosts"

    def host_record(self, host: str) -> Path:
        """What is noted of a host."""
        return self.hosts / f"{host}.json"

    def host_lock(self, host: str) -> Path:
        """The file a host locks while it lives."""
        return self.hosts / f"{host}.lock"

    def blob(self, digest: str) -> Path:
        """The content of ``digest``."""
        return self.blobs / digest

    def metadata_file(self, digest: str) -> Path:
        """The document about ``digest``."""
        return self.metadata / f"{digest}.json"

    def lease_file(self, digest: str) -> Path:
        """The lock of ``digest``."""
        return self.leases / digest

    @property
    def change_lock(self) -> Path:
        """The lock of whoever changes metadata or removes content."""
        return self.root / "change.lock"

    def prepare(self) -> None:
        """Make what is missing, private to the user, and see that locks work here.

        Raises:
            StoreFailure: a directory cannot be made, or the file system has no locks.

        """
        try:
            for directory in self._folders:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _try_lock(self.change_lock)
        except OSError as problem:
            raise unusable(self.root, problem) from problem

    def require_one_disk(self) -> None:
        """See that what is written can become content by a new name; raises ``StoreFailure``.

        A folder behind a link may lie elsewhere, and the last step of a long download would fail.
        """
        try:
            apart = self.incoming.stat().st_dev != self.blobs.stat().st_dev
        except OSError as problem:
            raise unusable(self.root, problem) from problem
        if apart:
            crossed = OSError(errno.EXDEV, f"{self.incoming} lies on another file system than {self.blobs}")
            raise unusable(self.root, crossed) from crossed

    @property
    def _folders(self) -> tuple[Path, ...]:
        return self.blobs, self.metadata, self.leases, self.incoming, self.quarantine, self.derived, self.hosts

    def digests(self) -> list[str]:
        """Every digest that has content or a document, sorted; raises ``StoreFailure`` where they cannot be listed."""
        try:
            with_content = {path.name for path in self.blobs.iterdir()}
            described = {path.stem for path in self.metadata.iterdir()}
        except OSError as problem:
            raise unusable(self.root, problem) from problem
        return sorted(name for name in with_content | described if is_digest(name))


def is_digest(name: str) -> bool:
    """Whether ``name`` is a bare digest as files are named by it."""
    return len(name) == 64 and _DIGEST.fullmatch(name) is not None


def read_digest(text: str) -> str:
    """The 64 digits of a digest written with or without ``sha256:``; raises ``InvalidRequest`` for anything else."""
    found = _DIGEST.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"digest {text[:80]!r} is not 64 lowercase hexadecimal digits, with or without 'sha256:'; correct it",
            details={"digest": text[:80]},
        )
    return found[1]


def unusable(path: Path, problem: OSError) -> StoreFailure:
    """What to say when the cache cannot be read or written at ``path``."""
    if problem.errno in _NO_LOCKS:
        remedy = "its file system has no file locks; choose a cache directory on one that has"
    elif problem.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "free disk space there, then retry"
    elif problem.errno == errno.EXDEV:
        remedy = "put all its folders on one file system, then retry"
    elif problem.errno in _UNWRITABLE:
        remedy = "give the host's user the right to write there, or choose another cache directory"
    else:
        remedy = "put right what is in its place, or check the disk, then retry"
    where = f": {problem.filename}" if problem.filename not in (None, str(path)) else ""
    return StoreFailure(f"the model cache at {path} cannot be used ({problem.strerror or problem}{where}); {remedy}")


def is_unwritable(failure: StoreFailure) -> bool:
    """Whether the cache may be whole and cannot be written: it is mounted read-only, or this user has no right."""
    return isinstance(failure.__cause__, OSError) and failure.__cause__.errno in _UNWRITABLE


def _try_lock(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass  # somebody changes the cache right now, with a lock that works
    finally:
        os.close(descriptor)
