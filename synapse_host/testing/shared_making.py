"""What costs much to make and is only read is made once for all processes of a test run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder ``name`` of this test run, filled by ``make`` in the first process that asks; the others wait for it.

    A process in which ``make`` raises leaves it to the next, in a folder that may not be empty. Nobody may change what
    is in it: copy it first.
    """
    base = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in the one of the run.
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
    folder, made = shared / name, shared / f"{name}.made"
    folder.mkdir(parents=True, exist_ok=True)
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(folder)
            made.touch()
    return folder


def copies(origin: Path) -> Callable[[Path], Path]:
    """Makes copies of a folder that was made once: each is its caller's to change."""

    def make(folder: Path) -> Path:
        shutil.copytree(origin, folder, dirs_exist_ok=True)
        return folder

    return make
