"""A backend whose device or driver went after its models were loaded is unavailable, not another package."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synapse_host import host_workers
from synapse_host.backends.capability import BackendRow
from synapse_host.backends.discovery import BackendEntry
from synapse_host.errors import BackendUnavailable, EngineCrashed
from synapse_host.host_workers import HostWorkers
from synapse_host.lanes import backend_choice
from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.supervision.worker import Worker
from synapse_host.testing.workers.stub_lane import stub_model

pytestmark = pytest.mark.anyio

MODEL = stub_model()
GONE = BackendRow(
    MODEL.backend, False, reason="device_missing", reason_detail="driver_missing", message="install the driver"
)


class Machine:
    """What a look at the backend says, and the looks there were: whether each was a new one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rows: BackendRow) -> None:
        self.rows, self.looks = list(rows), list[bool]()
        entry = cast(BackendEntry, SimpleNamespace(name=MODEL.backend))
        monkeypatch.setattr(backend_choice, "list_backends", lambda: [entry])
        monkeypatch.setattr(backend_choice, "probe_backend", self.probe)

    async def probe(self, entry: BackendEntry, *, refresh: bool = False, **_: object) -> BackendRow:
        self.looks.append(refresh)
        return self.rows.pop(0)


def workers_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handshake_code: str) -> HostWorkers:
    """Workers of a host of which every one is refused at its HELLO."""

    async def refused(*_: object) -> Worker:
        raise EngineCrashed("HELLO build flag device is another", details={"handshake_code": handshake_code})

    monkeypatch.setattr(Worker, "start", refused)
    monkeypatch.setattr(host_workers, "WorkerSpec", lambda **given: given)
    monkeypatch.setattr(host_workers, "worker_socket_path", lambda *_: tmp_path / "w.sock")
    settings: Any = SimpleNamespace(
        paths=SimpleNamespace(runtime_dir=tmp_path), server=SimpleNamespace(max_frame=1), of_backends={}
    )
    pauses: Any = SimpleNamespace(require_lock=lambda model: None)
    unused = cast(Any, None)
    return HostWorkers(settings, BackendChoice(tmp_path), pauses, unused, unused, unused, unused)


async def test_a_worker_without_its_driver_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, GONE, GONE, GONE)
    workers = workers_of(tmp_path, monkeypatch, "kernel_revision_mismatch")
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="cannot run here: install the driver") as refused:
            await workers.start(MODEL)
        (told,) = (refused.value.details or {})["backends"]
        assert (told["reason"], told["reason_detail"]) == ("device_missing", "driver_missing")
    # What was said first may be out of date the second time.
    assert machine.looks == [True, False, True]


async def test_another_device_that_runs_is_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, *[BackendRow(MODEL.backend, True)] * 2)
    workers = workers_of(tmp_path, monkeypatch, "kernel_revision_mismatch")
    for _ in range(2):
        with pytest.raises(EngineCrashed, match="build flag device is another"):
            await workers.start(MODEL)
    assert machine.looks == [True, False]


async def test_a_worker_that_is_no_other_package_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    with pytest.raises(EngineCrashed):
        await workers_of(tmp_path, monkeypatch, "nonce_mismatch").start(MODEL)
    assert not machine.looks
