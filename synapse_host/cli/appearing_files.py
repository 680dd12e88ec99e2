"""A file that is there under its name when it is whole; until then it is a hidden file beside it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def appearing(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces ``path`` when the block ends, and leaves it as it was when the block raises.

    What earlier processes left unfinished beside ``path`` when they were killed is removed first.

    Raises:
        OSError: the file cannot be created, written or given its name.

    """
    remove_leftovers(path)
    hidden = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with hidden.open("wb") as file:
            # Held for as long as it is written: a process that this one cannot see may look for leftovers too.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            hidden.unlink()
        raise


def remove_leftovers(path: Path) -> None:
    """Remove the unfinished files of ``path`` whose process is gone; those that cannot be removed stay."""
    named = re.compile(rf"\.{re.escape(path.name)}\.([1-9][0-9]*)\.part")
    with suppress(OSError):
        for file in list(path.parent.iterdir()):
            found = named.fullmatch(file.name)
            if found and not _is_alive(int(found[1])):
                with suppress(OSError):
                    _remove_unless_held(file)


def _remove_unless_held(file: Path) -> None:
    # A process of another container has a number that says nothing here, but its lock is seen.
    with file.open("rb") as left:
        fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.unlink()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
