"""The lock on a file: one process at a time, however often it is taken."""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.settings import resolve_paths

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


def test_its_folder_is_made_and_what_cannot_be_made_is_an_error_and_not_another_holder(tmp_path: Path) -> None:
    assert FileLock(tmp_path / "of" / "user" / "hardware.lock").acquire()
    assert (tmp_path / "of" / "user").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        FileLock(tmp_path / "file" / "hardware.lock").acquire()
    (tmp_path / "link.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileLock(tmp_path / "link.lock").acquire()


def test_a_file_system_without_locks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    lock = FileLock(tmp_path / "hardware.lock")
    with pytest.raises(OSError, match="No locks available"):
        lock.acquire()
    assert lock.descriptor is None


def test_the_file_that_is_locked_is_the_one_the_next_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flock = tmp_path / "hardware.lock", fcntl.flock

    def removed_meanwhile(descriptor: int, how: int) -> None:
        flock(descriptor, how)
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    assert FileLock(path).acquire()
    assert path.exists()


#: A host of one user as far as the lock goes: which directories it has is told by its environment alone.
HOLDER = """
import os, subprocess, sys
home, PAUSE = sys.argv[1], "import signal; signal.pause()"
import pwd
user = pwd.getpwuid(os.getuid())
pwd.getpwuid = lambda _: pwd.struct_passwd((*user[:5], home, user[6]))
from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.settings import load_settings
lock = FileLock(load_settings().paths.neural_engine_lock)
if not lock.acquire():
    sys.exit(3)
worker = subprocess.Popen([sys.executable, "-c", PAUSE], stdin=lock.descriptor) if "worker" in sys.argv else None
print(lock.path, worker and worker.pid, flush=True)
sys.stdin.read()
"""


def host_below(folder: Path, name: str, *options: str) -> subprocess.Popen[str]:
    """A process that holds the lock, or ends with 3, with every directory of the environment its own."""
    own = {variable: str(folder / name / variable) for variable in ("SYNAPSE_HOME", "HOME", "TMPDIR")}
    own |= {f"XDG_{kind}_HOME": str(folder / name) for kind in ("STATE", "DATA", "CACHE", "CONFIG")}
    own |= {"XDG_RUNTIME_DIR": str(folder / name / "run")}
    kept = {key: value for key, value in os.environ.items() if key in ("PYTHONPATH", "PATH")}
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder / "user"), *options],
        env=kept | own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_two_hosts_of_one_user_with_different_homes_exclude_each_other(tmp_path: Path) -> None:
    with host_below(tmp_path, "first") as first:
        (where, _) = told(first)
        assert Path(where).is_relative_to(tmp_path / "user"), "below the home of the user, and of nobody's environment"
        with host_below(tmp_path, "second") as second:
            assert second.wait() == 3
        first.kill()
    with host_below(tmp_path, "second") as second:
        assert told(second)[0] == where
        second.kill()


def test_it_is_given_back_only_when_who_inherited_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "hardware.lock"
    gone: list[bool] = []
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


def test_who_outlives_a_killed_host_fences_hosts_of_every_home(tmp_path: Path) -> None:
    with host_below(tmp_path, "first", "worker") as first:
        where, worker = told(first)
        try:
            first.kill()
            first.wait()
            with host_below(tmp_path, "second") as second:
                assert second.wait() == 3
        finally:
            os.kill(int(worker), signal.SIGKILL)
    lock = FileLock(Path(where))
    while not lock.acquire():
        pass
    lock.release()


@pytest.mark.parametrize(
    ("system", "below"),
    [("linux", ".local/state/synapse-host"), ("darwin", "Library/Application Support/synapse-host")],
)
def test_the_directory_of_a_user_is_found_by_the_password_database_alone(
    system: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    for environment in ({}, {"SYNAPSE_HOME": "/one"}, {"SYNAPSE_HOME": "/two", "HOME": "/three"}):
        assert resolve_paths(environment).neural_engine_lock == home / below / "neural-engine.lock"
    theirs = resolve_paths({"SYNAPSE_TEST_HARDWARE_DIR": "/of/tests"})
    assert theirs.neural_engine_lock == Path("/of/tests/neural-engine.lock")


def test_a_user_without_a_home_has_one_directory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert resolve_paths({}).neural_engine_lock == Path(f"/tmp/synapse-{os.getuid()}/neural-engine.lock")
