"""One host per runtime directory: private directories, the lock, and a socket path that is free.

Every refusal is a ``StartRefused`` that names the path, who or what is in the way, and the remedy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synapse_host.errors import StartRefused

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
#: Seconds a connection attempt may take before the socket counts as served.
_CONNECT_S = 1.0


def make_private_directory(path: Path) -> None:
    """Make ``path`` exist with mode 0700, owned by us.

    Raises:
        StartRefused: it belongs to another user, is no directory, or cannot be made.

    """
    try:
        path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode):
            raise StartRefused(f"{path} is not a directory; remove it or choose another SYNAPSE_HOME")
        if facts.st_uid != os.getuid():
            raise StartRefused(f"{path} belongs to user {facts.st_uid}, not {os.getuid()}; choose another SYNAPSE_HOME")
        if stat.S_IMODE(facts.st_mode) != PRIVATE_DIRECTORY:
            path.chmod(PRIVATE_DIRECTORY)
    except OSError as error:
        raise StartRefused(
            f"{path} cannot be made a private directory: {error}; choose another SYNAPSE_HOME"
        ) from error


@contextmanager
def only_host(lock_file: Path) -> Iterator[None]:
    """Hold the lock of a runtime directory; its file names the holder. The kernel frees it if we die.

    Raises:
        StartRefused: another host holds the lock, the file system has none, or it has no room for the holder's name.

    """
    handle = _open_lock(lock_file)
    try:
        _lock(handle, lock_file)
        _name_holder(handle, lock_file)
        yield
    finally:
        # The file stays: unlinking it would let two hosts lock two files of one name.
        os.close(handle)


def _open_lock(lock_file: Path) -> int:
    try:
        return os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    except OSError as error:
        raise StartRefused(f"{lock_file} cannot be opened: {error}; choose another SYNAPSE_HOME") from error


def _lock(handle: int, lock_file: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip() or "an unknown process"
            raise StartRefused(
                f"another host serves this directory: {holder} holds {lock_file}; "
                "stop it, or start this one with another SYNAPSE_HOME"
            ) from None
        raise StartRefused(
            f"{lock_file} cannot be locked: {error}; choose a SYNAPSE_HOME on a local file system"
        ) from error


def _name_holder(handle: int, lock_file: Path) -> None:
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise StartRefused(
            f"{lock_file} cannot be written: {error.strerror}; check free disk space, or choose another SYNAPSE_HOME"
        ) from error


def clear_stale_socket(path: Path) -> None:
    """Remove what a killed host left at ``path``, found by connecting to it.

    Raises:
        StartRefused: something answers there, or it is no socket.

    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartRefused(f"{path} exists and is no socket; remove it")
    if _answers(path):
        raise StartRefused(f"{path} is served by a process that does not hold the lock; stop that process")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # A full backlog or a timeout: somebody is there.
            return True
        return True
