"""``synapse-opctl cache hosts`` and ``cache forget``, on caches whose hosts were lost, stopped or run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from synapse_host.cli.cache_commands import app
from synapse_host.cli.exit_codes import Exit
from synapse_host.settings import resolve_paths
from synapse_host.testing.download_room import manifest_of, running_room

MODEL = b"weights" * 100
MANIFEST = manifest_of({"model": MODEL})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home the commands are given, on a machine with an id."""
    (tmp_path / "machine-id").write_text("5" * 32)
    monkeypatch.setattr("synapse_host.cache.host_records._MACHINE_IDS", (tmp_path / "machine-id",))
    monkeypatch.setattr("synapse_host.cache.host_records._CONTAINER_MARKS", ())
    monkeypatch.setenv("SYNAPSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def cache_of(home: Path) -> Path:
    return resolve_paths({"SYNAPSE_HOME": str(home)}).cache_dir / "models"


def installed(home: Path, data: Path) -> str:
    """Install the model at another home that shares the cache; its id."""

    async def install() -> str:
        async with running_room(data, [MODEL], cache_root=cache_of(home)) as running:
            await running.download(MANIFEST)
            return running.room.cache.owner

    host = anyio.run(install)
    (data / "synapse.db").rename(data / "synapse.sqlite3")
    return host


@pytest.fixture
def cache(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must end with a status; what it wrote to both streams."""

    def run(*arguments: str, status: Exit = Exit.OK) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            app(list(arguments))
        said = capfd.readouterr()
        assert ended.value.code == status, said
        return said.out + said.err

    return run


def test_hosts_are_listed_with_what_they_keep(home: Path, tmp_path: Path, cache: Callable[..., str]) -> None:
    host = installed(home, tmp_path / "other")
    (listed,) = json.loads(cache("hosts", "--json"))["hosts"]
    assert (listed.pop("hostname"), listed.pop("last_start_ms")) is not None
    assert listed == {
        "host": host,
        "state": "stopped",
        "pinned_files": 1,
        "pinned_bytes": len(MODEL),
        "home": str(tmp_path / "other"),
    }
    assert f"{host}\tstopped\t1\t{len(MODEL)}\t" in cache("hosts")


def test_a_host_that_is_no_more_is_forgotten(home: Path, tmp_path: Path, cache: Callable[..., str]) -> None:
    host = installed(home, tmp_path / "other")
    shutil.rmtree(tmp_path / "other")
    told = cache("forget", host)
    assert told.startswith(f"1 pins of host {host} are taken back; nobody needs 1 files with {len(MODEL)} bytes")
    assert "synapse-opctl cache gc" in told
    assert json.loads(cache("hosts", "--json"))["hosts"] == []
    assert f"host '{host}' is not known" in cache("forget", host, status=Exit.USAGE)


def test_a_host_whose_home_is_there_is_forgotten_by_force_alone(
    home: Path, tmp_path: Path, cache: Callable[..., str]
) -> None:
    host = installed(home, tmp_path / "other")
    refused = cache("forget", host, status=Exit.REFUSED)
    assert ": does not run, its home is there" in refused
    assert str(tmp_path / "other") in refused
    assert json.loads(cache("forget", host, "--force", "--json"))["free_bytes"] == len(MODEL)


def test_a_host_that_runs_is_never_forgotten(home: Path, tmp_path: Path, cache: Callable[..., str]) -> None:
    async def refused() -> str:
        async with running_room(tmp_path / "other", [MODEL], cache_root=cache_of(home)) as running:
            await running.download(MANIFEST)
            return cache("forget", running.room.cache.owner, "--force", status=Exit.REFUSED)

    assert "runs (" in anyio.run(refused)


def test_a_cache_that_is_no_directory_is_said_to_be_none(home: Path, cache: Callable[..., str]) -> None:
    cache_of(home).parent.mkdir(parents=True)
    cache_of(home).write_text("")
    for command in ("hosts", "pins", "verify"):
        assert "is no directory" in cache(command, status=Exit.REFUSED)
