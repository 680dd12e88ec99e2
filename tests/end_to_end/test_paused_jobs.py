"""A durable job through a pause of its lane in a real host: fenced, unloaded, handed in again, computed once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.client import durable
from synapse_host.client.blocking_client import Client
from synapse_host.errors import EXCEPTIONS, SynapseError
from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.testing import neural_stub_backend
from synapse_host.testing.command_runs import run_opctl
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model, python_path

MODEL = TinyBert(seed=11, hidden=32, layers=1, heads=4, intermediate=64, vocab=120, positions=64)
TEXTS = [f"{'tide ' * (place % 11)}number {place}" for place in range(4000)]


@pytest.fixture(scope="module")
def neural_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    folder = tmp_path_factory.mktemp("neural")
    (plugins := folder / "plugins").mkdir()
    install_backend(plugins, neural_stub_backend.BACKEND, Path(neural_stub_backend.__file__).read_text("utf-8"))
    write_model(folder / "model", MODEL, "f32")
    environment = {**python_path(plugins), "SYNAPSE_JOBS_COMMIT_S": "0"}
    host = RunningHost(folder / "home", environment)
    # Certified as what it is: a model of the Neural Engine is only certified with its placement there.
    with host, host.client() as client:
        load_model(client, folder / "model", engine=neural_stub_backend.BACKEND, model_id="neural")
        load_model(client, folder / "model", engine="reference", model_id="beside")
    (plugins / "sitecustomize.py").write_text(neural_stub_backend.SITE)
    with host:
        yield host


@dataclass(slots=True)
class Waiter:
    """``embed_many`` in a thread; what it was told and what came of it."""

    host: RunningHost
    key: str
    told: list[Exception]
    found: list[Any]

    def run(self) -> None:
        with self.host.client() as client:
            self.found.append(
                client.embed_many("neural", TEXTS, request_key=self.key, retries=9, on_wait=self.told.append)
            )


def rows_computed(client: Client) -> int:
    (row,) = [row for row in client.models_list()["models"] if row["model_id"] == "neural"]
    computed: int = row["rows_computed"]
    return computed


def phase(client: Client, *wanted: str) -> dict[str, Any]:
    """The status of the pause once it is in one of these phases."""
    while (status := client.call("lanes.status"))["phase"] not in wanted:
        pass
    return status


def ended(client: Client, job_id: str) -> dict[str, Any]:
    """The status of a job once it has ended; the hardware may be free a moment before that is written down."""
    while (status := client.model_status(job_id=job_id))["state"] in ("queued", "running"):
        pass
    return status


def job_of(client: Client, key: str) -> dict[str, Any]:
    """The newest job of a key, once there is one."""
    while not (jobs := [job for job in client.call("admission.status")["jobs_recent"] if job["request_key"] == key]):
        pass
    return jobs[0]


@pytest.mark.timeout(180)
def test_a_job_through_a_pause_is_done_with_nothing_computed_twice(
    neural_host: RunningHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "_PAUSE_LOOK_S", 0.05)
    waiter = Waiter(neural_host, "through", [], [])
    with neural_host.client() as client:
        before = rows_computed(client)
        thread = threading.Thread(target=waiter.run)
        thread.start()
        first = job_of(client, "through/0001")
        while job_of(client, "through/0001")["pages_available"] < 2:
            pass
        begun = client.call("lanes.pause", {"scope": "neural_engine", "duration_ms": 600_000, "reason": "measuring"})
        assert (begun["phase"], begun["hardware_free"], begun["lane_ids"]) == ("draining", False, ["neural"])
        status = phase(client, "paused")
        assert (status["hardware_free"], status["reason"]) == (True, "measuring")
        # The job has met the fence, with what it had committed, and its worker is gone.
        fenced = ended(client, first["job_id"])
        assert (fenced["state"], fenced["error"]["code"]) == ("failed_transient", "lane_paused"), fenced
        assert fenced["error"]["details"]["lane_id"] == "neural"
        assert 0 < fenced["items_done"] < len(TEXTS)
        assert rows_computed(client) - before == fenced["items_done"], "the group under way was finished and kept"
        assert client.model_status(model_id="neural")["state"] == "unloaded"
        lock = FileLock(neural_host.home / "hardware" / "neural-engine.lock")
        _refusals_while_paused(client)
        # Somebody measures, and still does when the pause is ended.
        assert lock.acquire(), "the hardware is free"
        client.call("lanes.resume")
        assert phase(client, "waiting_for_lock")["hardware_free"] is False
        _refusals_while_paused(client)
        assert client.embed_query("beside", "the other lane").dims == 32
        lock.release()
        phase(client, "running")
        thread.join()
        (reply,) = waiter.found
        assert rows_computed(client) - before == len(TEXTS), "nothing was computed twice"
        last = job_of(client, "through/0001")
        assert (last["state"], last["job_id"] != first["job_id"]) == ("done", True)
        expected = client.embed_many("neural", TEXTS[:200])
    assert np.array_equal(reply.vectors[:200], expected.vectors)
    assert [type(error) for error in waiter.told] == [EXCEPTIONS["lane_paused"]]


def _refusals_while_paused(client: Client) -> None:
    for method, params in (
        ("embed.query", {"model": "neural", "text": "a"}),
        ("embed.batch", {"model": "neural", "texts": ["a", "b"]}),
        ("embed.batch", {"model": "neural", "texts": ["a"] * 100, "request_key": "new"}),
    ):
        with pytest.raises(SynapseError) as refusal:
            client.call(method, params)
        assert refusal.value.code == "lane_paused"
        assert (refusal.value.retry_after_ms or 0) >= 1000
        assert (refusal.value.details or {})["lane_id"] == "neural"
    assert not [job for job in client.call("admission.status")["jobs_recent"] if job["request_key"] == "new"]


@pytest.mark.timeout(120)
def test_a_job_that_waits_behind_another_meets_the_pause_too(neural_host: RunningHost) -> None:
    with neural_host.client() as client:
        items = [{"id": str(place), "text": text} for place, text in enumerate(TEXTS)]
        jobs = [
            client.call("embed.batch", {"model": "neural", "items": items, "request_key": key})["job_id"]
            for key in ("ahead", "behind")
        ]
        while client.model_status(job_id=jobs[0])["pages_available"] < 1:
            pass
        paused = run_opctl("lanes", "pause", "--minutes", "1", "--reason", "measuring", "--json", home=neural_host.home)
        assert paused.returncode == 0, paused.stderr
        phase(client, "paused")
        for job_id in jobs:
            status = ended(client, job_id)
            assert (status["state"], status["error"]["code"]) == ("failed_transient", "lane_paused"), status
        assert client.model_status(job_id=jobs[1])["items_done"] == 0
        # job.resume is for logins, and changes nothing here.
        assert client.job_resume(jobs[0])["state"] == "failed_transient"
        assert run_opctl("lanes", "resume", "--json", home=neural_host.home).returncode == 0
        phase(client, "running")
        again = client.call("embed.batch", {"model": "neural", "items": items, "request_key": "ahead"})
        assert again["items_done"] >= client.model_status(job_id=jobs[0])["items_done"] > 0
        assert client.wait_for_job(again["job_id"])["items_done"] == len(TEXTS)
