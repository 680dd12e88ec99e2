"""The lock of a piece of hardware that one process of a user may have at a time, such as the Neural Engine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class HardwareLock(Protocol):
    """What a pause and a worker need of the lock. No call waits; ``path`` is where its holder can be looked for."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    def acquire(self) -> bool:
        """Take it; False while another process has it. Taking what one has is harmless."""
        ...

    def release(self) -> None:
        """Give it back; raises ``OSError`` where it cannot. Giving back what one does not have is harmless."""
        ...


class FileLock:
    """An advisory lock on a file of the user, held while its descriptor is open here or in who inherited it.

    It is only ever closed, never unlocked: a worker that outlives the host keeps the hardware fenced until it ends.
    ``path`` is where every process of the user looks for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._holders: list[Callable[[], bool]] = []

    def acquire(self) -> bool:
        """Take it; raises ``OSError`` where the file cannot be made or locked."""
        while self._descriptor is None:
            descriptor = self._opened()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(descriptor):
                    self._descriptor = descriptor
            except BlockingIOError:
                return False
            finally:
                if self._descriptor is None:
                    os.close(descriptor)
        return True

    def _opened(self) -> int:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _is_there(self, descriptor: int) -> bool:
        """Whether what was locked is what the next process would open: somebody may have removed the file."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path))
        except FileNotFoundError:
            return False

    @property
    def descriptor(self) -> int | None:
        """What a process that uses the hardware inherits; None while the lock is not ours."""
        return self._descriptor

    def inherited(self, gone: Callable[[], bool]) -> None:
        """A process was started with the descriptor; ``gone`` says whether its end is confirmed."""
        self._holders = [holder for holder in self._holders if not holder()] + [gone]

    def release(self) -> None:
        """Give it back.

        Raises:
            OSError: a process that inherited it is not known to have ended, so that it is not free; it stays ours.

        """
        if self._descriptor is None:
            return
        self._holders = [holder for holder in self._holders if not holder()]
        if self._holders:
            raise OSError(f"{len(self._holders)} processes that inherited it are not known to have ended")
        os.close(self._descriptor)
        self._descriptor = None
