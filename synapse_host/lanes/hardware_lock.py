"""The lock of a piece of hardware that one process of a user may have at a time, such as the Neural Engine."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol


class HardwareLock(Protocol):
    """What a pause needs of the lock. Neither call waits."""

    def acquire(self) -> bool:
        """Take it; False while another process has it. Taking what one has is harmless."""
        ...

    def release(self) -> None:
        """Give it back; raises ``OSError`` where it cannot. Giving back what one does not have is harmless."""
        ...


class FileLock:
    """An advisory lock on a file of the user, held while its descriptor is open here or in who inherited it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take it; raises ``OSError`` where the file cannot be made."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back, whoever inherited the descriptor."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None
