"""The lock on a file: one process at a time, however often it is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.lanes.hardware_lock import FileLock

TAKE = "import sys; from synapse_host.lanes.hardware_lock import FileLock; from pathlib import Path; "


def taken_elsewhere(path: Path) -> bool:
    """Whether another process can take it now."""
    code = TAKE + "sys.exit(0 if FileLock(Path(sys.argv[1])).acquire() else 3)"
    status = subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode
    assert status in (0, 3)
    return status == 0


def test_one_process_has_it_until_it_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "hardware.lock"
    lock = FileLock(path)
    lock.release()
    assert lock.acquire()
    assert lock.acquire()
    assert not taken_elsewhere(path)
    lock.release()
    assert taken_elsewhere(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_made_is_an_error_and_not_another_holder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        FileLock(tmp_path / "missing" / "hardware.lock").acquire()


def test_it_is_given_back_only_when_who_inherited_it_is_gone(tmp_path: Path) -> None:
    path, gone = tmp_path / "hardware.lock", []
    lock = FileLock(path)
    assert lock.descriptor is None
    assert lock.acquire()
    lock.inherited(lambda: bool(gone))
    with pytest.raises(OSError, match="1 processes that inherited it"):
        lock.release()
    assert not taken_elsewhere(path)
    gone.append(True)
    lock.release()
    assert lock.descriptor is None
    assert taken_elsewhere(path)
