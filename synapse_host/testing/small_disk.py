"""A file system of one megabyte that tests fill; only root can mount one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_FILLER = "filler"
#: For a module whose tests mount a file system.
only_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("mount") is None, reason="only root can mount a small file system"
)


@contextmanager
def mounted(place: Path, size: str = "1m") -> Iterator[None]:
    """An empty file system of ``size`` at ``place`` for the length of the block; skips the test where there is none."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        # Lazily: a test that fails leaves a host that is still ending.
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S607 - wherever the system has it


def fill(place: Path) -> None:
    """Leave no byte free."""
    with (place / _FILLER).open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def free(place: Path) -> None:
    """Make the room again that ``fill`` took."""
    (place / _FILLER).unlink()


def free_bytes(place: Path) -> int:
    """Bytes that can still be written there."""
    facts = os.statvfs(place)
    return facts.f_bavail * facts.f_frsize


def is_sound(store: Path) -> bool:
    """Whether SQLite finds nothing wrong with a store."""
    connection = sqlite3.connect(store)
    try:
        return bool(connection.execute("PRAGMA integrity_check").fetchone() == ("ok",))
    finally:
        connection.close()
