"""A full disk is told as such, costs nothing that was stored, and is over when there is room again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from synapse_host.cli.exit_codes import Exit
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import JobCancelled
from synapse_host.client.job_parts import JobPart
from synapse_host.errors import StoreFailure
from synapse_host.testing import small_disk as disk
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.small_disk import mounted

pytestmark = disk.only_root


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte as the data directory of the home it returns."""
    (tmp_path / "data").mkdir()
    with mounted(tmp_path / "data"):
        yield tmp_path


def fill(home: Path) -> None:
    disk.fill(home / "data")


def free(home: Path) -> None:
    disk.free(home / "data")


def sound(home: Path) -> bool:
    return disk.is_sound(home / "data" / "synapse.sqlite3")


def stopped_worker(client: Client) -> int:
    """The process of the model's worker, which does nothing until it is told to go on: so a job is under way."""
    client.embed_query("tiny", "text")
    (lane,) = client.call("admission.status")["health"]["lanes"]
    worker: int = lane["worker_pid"]
    os.kill(worker, signal.SIGSTOP)
    return worker


def fill_beside_a_running_job(host: RunningHost) -> None:
    with host.client() as operator:
        while operator.call("admission.status")["jobs_recent"][0]["state"] != "running":
            pass
    fill(host.home)


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
            timeout=100,
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
            fill_beside_a_running_job(host)
            os.kill(worker, signal.SIGCONT)
        looks.append(rows)

    def make_room(error: Exception) -> None:
        told.append(error)
        free(home)

    with host, host.client() as client:
        worker = stopped_worker(client)
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


def test_a_job_cancelled_on_a_full_disk_is_not_handed_in_again(
    small_disk: Path, tiny_directory: Path, certified: Callable[[Path], Path]
) -> None:
    home, host = certified(small_disk), RunningHost(small_disk, {"SYNAPSE_JOBS_SWEEP_S": "0.2"})
    states: list[str] = []

    def cancel_on_a_full_disk(rows: int) -> None:
        if states:
            return
        fill_beside_a_running_job(host)
        with host.client() as operator:
            assert operator.call("admission.status")["jobs_open"] == 1
            (ended,) = operator.job_cancel(None, request_key="k")["jobs"]
            states.append(ended["state"])
            health = operator.call("admission.status")["health"]
        os.kill(worker, signal.SIGCONT)
        assert ended["waiting_for"]["details"] == {"ends_as": "cancelled", "outlives_the_host": True}
        assert (health["degraded"], "free disk space" in health["store_fault"]) == (True, True)

    with host, host.client() as client:
        worker = stopped_worker(client)
        parts = [JobPart(1, [str(place) for place in range(600)], [f"text {place}" for place in range(600)])]
        with pytest.raises(JobCancelled):
            list(client.embed_jobs("tiny", parts, request_key="k", retries=5, on_rows=cancel_on_a_full_disk))
        assert states == ["running"]
        host.kill()
    free(home)
    with host, host.client() as client:
        answer = client.call("admission.status")
        assert [job["state"] for job in answer["jobs_recent"]] == ["cancelled"]
        assert (answer["jobs_open"], "store_fault" in answer["health"]) == (0, False)
    assert sound(home)
