"""A full disk is told as such, costs nothing that was stored, and is over when there is room again."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.client.job_parts import JobPart
from synapse_host.errors import StoreFailure
from synapse_host.testing.running_host import RunningHost, load_model

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("mount") is None, reason="only root can mount a small file system"
)

FILLER = "filler"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte as the data directory of the home it returns."""
    (tmp_path / "data").mkdir()
    with mounted(tmp_path / "data"):
        yield tmp_path


@contextmanager
def mounted(place: Path) -> Iterator[None]:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        # Lazily: a test that fails leaves a host that is still ending.
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(home: Path) -> None:
    """Leave no byte free."""
    with (home / "data" / FILLER).open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def free(home: Path) -> None:
    (home / "data" / FILLER).unlink()


def sound(home: Path) -> bool:
    with sqlite3.connect(home / "data" / "synapse.sqlite3") as store:
        verdict = store.execute("PRAGMA integrity_check").fetchone()
    store.close()
    return bool(verdict == ("ok",))


def test_a_load_and_a_probe_fail_typed_and_succeed_when_there_is_room(
    small_disk: Path, tiny_directory: Path, certified: Callable[[Path], Path]
) -> None:
    home, host = certified(small_disk), RunningHost(small_disk)
    with host, host.client() as client:
        before = client.embed_query("tiny", "text")
        fill(home)

        with pytest.raises(StoreFailure, match=r"synapse\.sqlite3.*free disk space"):
            load_model(client, tiny_directory, engine="reference", model_id="second", pooling="cls")
        with pytest.raises(StoreFailure, match=r"synapse\.sqlite3.*free disk space"):
            client.wait_for_probe(client.probe_start(["tiny"])["job_id"])
        assert [row["model_id"] for row in client.models_list()["models"]] == ["tiny"]
        np.testing.assert_array_equal(client.embed_query("tiny", "text").vectors, before.vectors)

        free(home)
        load_model(client, tiny_directory, engine="reference", model_id="second", pooling="cls")
        second = client.embed_query("second", "text")

    assert sound(home)
    with host, host.client() as client:
        assert [row["model_id"] for row in client.models_list()["models"]] == ["second", "tiny"]
        np.testing.assert_array_equal(client.embed_query("tiny", "text").vectors, before.vectors)
        np.testing.assert_array_equal(client.embed_query("second", "text").vectors, second.vectors)


def test_a_host_that_is_killed_on_a_full_disk_comes_back_whole(small_disk: Path, tiny_directory: Path) -> None:
    home, host = small_disk, RunningHost(small_disk)
    with host, host.client() as client:
        load_model(client, tiny_directory, engine="reference", model_id="first", certify=False)
        fill(home)
        with pytest.raises(StoreFailure):
            load_model(client, tiny_directory, engine="reference", model_id="second", certify=False)
        host.kill()
    free(home)
    with host, host.client() as client:
        assert [row["model_id"] for row in client.models_list()["models"]] == ["first"]
    assert sound(home)


def test_a_host_does_not_start_on_a_full_disk_and_says_why(small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(AssertionError, match=r"error: .*synapse\.sqlite3.*free disk space"):
        RunningHost(small_disk).start()
    free(small_disk)
    with RunningHost(small_disk) as host, host.client() as client:
        assert client.models_list()["module_generation"] == 1


def test_a_home_on_a_full_disk_ends_a_start_with_one_line(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with mounted(home):
        (home / "data").mkdir()
        fill(home)
        refused = subprocess.run(
            [sys.executable, "-P", "-m", "synapse_host", "serve"],
            env={**os.environ, "SYNAPSE_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert refused.returncode == Exit.NOT_STARTED
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"error: {home}/")
    assert "free disk space" in line


def test_a_job_under_way_says_that_it_waits_for_the_disk(
    small_disk: Path, tiny_directory: Path, certified: Callable[[Path], Path]
) -> None:
    home, host = certified(small_disk), RunningHost(small_disk, {"SYNAPSE_JOBS_SWEEP_S": "0.5"})
    looks: list[int] = []
    told: list[Exception] = []

    def fill_once(rows: int) -> None:
        if not looks:
            fill(home)
        looks.append(rows)

    def make_room(error: Exception) -> None:
        told.append(error)
        free(home)

    with host, host.client() as client:
        parts = [JobPart(1, [str(place) for place in range(600)], [f"text {place}" for place in range(600)])]
        replies = list(
            client.embed_jobs(
                "tiny",
                parts,
                request_key="k",
                retries=1,
                on_rows=fill_once,
                on_wait=make_room,
            )
        )
        assert len(replies[0].ids) == 600
    assert looks[0] == 0
    assert [type(error) for error in told] == [StoreFailure]
    assert sound(home)
