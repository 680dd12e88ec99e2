"""The lock of the hardware in a real worker: it holds it as long as it lives, whatever becomes of the host's own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.workers.fake_engine import FAKE_ENGINE, load_request
from synapse_host.testing.workers.running_worker import PATIENCE_S, embed, running
from synapse_host.worker_protocol.messages import Loaded

pytestmark = pytest.mark.anyio


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    site = tmp_path / "site"
    site.mkdir()
    install_backend(site, "fake", FAKE_ENGINE)
    return WorkerSpec(
        "fake",
        "synapse-fake-engine-m",
        tmp_path / "s.sock",
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
        extra_env={"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])},
    )


def free(path: Path) -> bool:
    """Whether it could be taken now, by another opening of the file."""
    other = FileLock(path)
    taken = other.acquire()
    other.release()
    return taken


async def test_a_worker_holds_the_lock_until_it_ends_and_the_host_gives_it_back_after_that(
    spec: WorkerSpec, tmp_path: Path
) -> None:
    path = tmp_path / "hardware.lock"
    lock = FileLock(path)
    assert lock.acquire()
    async with running(replace(spec, stdin=lock.descriptor)) as worker:
        lock.inherited(worker.exited.is_set)
        reply, _ = await worker.request(load_request(tmp_path))
        assert isinstance(reply, Loaded)
        assert await embed(worker, reply.model_ref, [1, 2])
        with pytest.raises(OSError, match="inherited"):
            lock.release()
    assert not free(path)
    lock.release()
    assert free(path)


async def test_the_end_of_the_host_leaves_the_lock_with_the_worker(spec: WorkerSpec, tmp_path: Path) -> None:
    path = tmp_path / "hardware.lock"
    lock = FileLock(path)
    assert lock.acquire()
    assert lock.descriptor is not None
    async with running(replace(spec, stdin=lock.descriptor)):
        # What the kernel does with the descriptors of a host that is killed.
        os.close(lock.descriptor)
        assert not free(path)
    assert free(path)


async def test_a_worker_without_a_lock_reads_nothing_and_holds_nothing(spec: WorkerSpec, tmp_path: Path) -> None:
    path = tmp_path / "hardware.lock"
    lock = FileLock(path)
    async with running(spec):
        assert lock.acquire()
        lock.release()
        assert free(path)
