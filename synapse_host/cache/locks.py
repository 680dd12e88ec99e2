"""The locks of the cache: one for changes, and one per digest that readers share.

Kernel locks on open files, so that they end with their process however that ends. Blocking waits belong into a thread.
Order: the change lock first, then a lease.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synapse_host.cache.layout import CacheLayout, is_unwritable, unusable
from synapse_host.errors import StoreFailure


@contextmanager
def change_lock(layout: CacheLayout) -> Iterator[None]:
    """Hold the right to change metadata and to remove content, waiting for whoever has it; raises ``StoreFailure``."""
    descriptor = _opened(layout.change_lock)
    try:
        _lock(layout.change_lock, descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class ReadLease:
    """A reader's hold on one digest: until ``release``, no host sharing the cache removes its content.

    Where no lease file can be written the content itself is locked, which needs reading alone.
    """

    def __init__(self, layout: CacheLayout, digest: str) -> None:
        """Take the lease, waiting while the content is being removed; raises ``StoreFailure``."""
        self.digest = digest
        self._descriptor: int | None
        try:
            self._descriptor = _locked_lease(layout.lease_file(digest), fcntl.LOCK_SH)
            assert self._descriptor is not None
            # The time of use decides what goes first when the cache is too large.
            os.utime(self._descriptor)
        except StoreFailure as failure:
            if not is_unwritable(failure):
                raise
            self._descriptor = _held_content(layout.blob(digest))

    def release(self) -> None:
        """Give the hold up; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> ReadLease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def exclusive_lease(layout: CacheLayout, digest: str) -> Iterator[bool]:
    """Keep readers of ``digest`` away for the length of the block; False where one is there already."""
    descriptor = _locked_lease(layout.lease_file(digest), fcntl.LOCK_EX | fcntl.LOCK_NB)
    if descriptor is None:
        yield False
        return
    try:
        with _content_alone(layout.blob(digest)) as alone:
            yield alone
    finally:
        os.close(descriptor)


def locked_alone(path: Path, creating: int = 0) -> int | None:
    """The locked file, None where somebody else has it; with ``O_CREAT`` it is made. Raises ``OSError``."""
    # Not for writing: a file system with one open for that cannot be made read-only. NFS locks no other.
    for mode in (os.O_RDONLY, os.O_RDWR):
        descriptor = os.open(path, mode | creating | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as fault:
            os.close(descriptor)
            if fault.errno != errno.EBADF or mode == os.O_RDWR:
                raise
    return None


@contextmanager
def _content_alone(blob: Path) -> Iterator[bool]:
    """Keep readers away that could write no lease; False where one is there."""
    try:
        descriptor = locked_alone(blob) if blob.is_file() else -1
    except (FileNotFoundError, PermissionError):
        descriptor = -1  # what this user cannot read no host of this user reads
    except OSError as problem:
        raise unusable(blob, problem) from problem
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None and descriptor >= 0:
            os.close(descriptor)


def _held_content(blob: Path) -> int | None:
    """The content itself, locked among readers; None where there is none."""
    while True:
        try:
            descriptor = os.open(blob, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise unusable(blob, problem) from problem
        try:
            _lock(blob, descriptor, fcntl.LOCK_SH)
            if is_still(blob, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _locked_lease(path: Path, kind: int) -> int | None:
    while True:
        descriptor = _opened(path)
        try:
            if not _lock(path, descriptor, kind):
                os.close(descriptor)
                return None
            # A lease file goes with its blob: a lock on one that was removed meanwhile holds nothing.
            if is_still(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise unusable(path, problem) from problem


def _lock(path: Path, descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as problem:
        raise unusable(path, problem) from problem
    return True


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one ``path`` names now."""
    held = os.fstat(descriptor)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)
