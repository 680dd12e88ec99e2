"""Which worker gets a folder for what it compiles, and what of it the next one finds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.collection_rule import Mark
from synapse_host.errors import StoreFailure
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.package_folders import PackageFolders
from synapse_host.lanes.residency import LaneRuntime
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.worker_fault import FaultReason, WorkerFault
from synapse_host.testing.workers.held_worker import HeldWorker
from synapse_host.testing.workers.stub_lane import stub_model, until
from synapse_host.worker_protocol.messages import Load

pytestmark = pytest.mark.anyio


class Bench:
    """Folders in a cache with one model, and workers that end as the test says."""

    def __init__(self, root: Path) -> None:
        self.cache = BlobCache.open(root / "models", "host")
        with self.cache.ingest() as ingest:
            ingest.write(b"weights")
            sha256 = ingest.commit(name="model", source_url="", owner="host").digest
        engine = EngineIdentity("maker", "1")
        self.model = replace(stub_model(), model_sha256=sha256, engine=engine, kernel_revision="k1")
        self.numbers = iter(range(100, 200))

    def worker(self) -> Any:
        gone = anyio.Event()
        return SimpleNamespace(pid=next(self.numbers), gone=gone, model_gone=gone.wait, fault=None)

    @asynccontextmanager
    async def folders(self, os_build: str = "os-1") -> Any:
        async with anyio.create_task_group() as tasks:
            yield PackageFolders(self.cache.claim_derived, tasks, os_build=os_build)

    async def lent(self, folders: PackageFolders, worker: Any, model: RegisteredModel | None = None) -> Path:
        given = await folders.of(worker, model or self.model)
        assert given is not None
        return Path(given)


def end(worker: Any, reason: FaultReason = "stopped") -> None:
    worker.fault = WorkerFault(reason, "over")
    worker.gone.set()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(("reason", "left"), [("stopped", ["a"]), ("exited", []), ("silence", [])])
async def test_what_a_worker_compiled_is_kept_if_it_was_stopped(
    bench: Bench, reason: FaultReason, left: list[str]
) -> None:
    worker, next_one = bench.worker(), bench.worker()
    async with bench.folders() as folders:
        folder = await bench.lent(folders, worker)
        (folder / "a").write_bytes(b"program")
        end(worker, reason)
    async with bench.folders() as folders:
        found = await bench.lent(folders, next_one)
        assert (found, [path.name for path in found.iterdir()]) == (folder, left)
        end(next_one)


@pytest.mark.parametrize("change", ["engine", "kernel", "system", "source"])
async def test_another_engine_kernel_or_system_finds_nothing(bench: Bench, change: str) -> None:
    worker, other = bench.worker(), bench.worker()
    with bench.cache.ingest() as ingest:
        ingest.write(b"other weights")
        sha256 = ingest.commit(name="model", source_url="", owner="host").digest
    changed: Mapping[str, RegisteredModel] = {
        "engine": replace(bench.model, engine=EngineIdentity("maker", "1", {"fast": "yes"})),
        "kernel": replace(bench.model, kernel_revision="k2"),
        "source": replace(bench.model, model_sha256=sha256),
    }
    async with bench.folders() as folders:
        (await bench.lent(folders, worker) / "a").write_bytes(b"program")
        end(worker)
    async with bench.folders("os-2" if change == "system" else "os-1") as folders:
        assert not list((await bench.lent(folders, other, changed.get(change))).iterdir())
        end(other)


async def test_a_worker_has_its_folder_alone_and_finds_it_again_itself(bench: Bench) -> None:
    worker, other = bench.worker(), bench.worker()
    async with bench.folders() as folders:
        folder = await bench.lent(folders, worker)
        assert await folders.of(other, bench.model) is None
        assert await bench.lent(folders, worker) == folder
        end(worker)
        while await folders.of(other, bench.model) is None:
            await anyio.lowlevel.checkpoint()
        end(other)


async def test_a_model_that_leaves_a_process_others_go_on_using_takes_its_folder_along(bench: Bench) -> None:
    """Two lanes of the model in one process: the folder is free with the last, and what it holds is recorded."""
    one = bench.worker()
    two, again, other = bench.worker(), bench.worker(), bench.worker()
    two.pid = again.pid = one.pid
    digest = bench.model.model_sha256
    async with bench.folders() as folders:
        folder = await bench.lent(folders, one)
        (folder / "a").write_bytes(b"program")
        assert await bench.lent(folders, two) == folder
        one.gone.set()
        await anyio.wait_all_tasks_blocked()
        assert await folders.of(other, bench.model) is None
        bench.cache.unpin(digest)
        two.gone.set()
        await anyio.wait_all_tasks_blocked()
        # Loaded again while it is still recorded: the same folder, with what is in it.
        assert await bench.lent(folders, again) == folder
        assert [path.name for path in folder.iterdir()] == ["a"]
        again.gone.set()
        await until(lambda: not folders._lent)
        # Nothing reads it any more.
        assert [each.verdict for each in bench.cache.collect(now_ms=0, grace_ms=0)] == [Mark(0, 0)]


async def test_a_host_that_ends_before_the_model_left_records_nothing(bench: Bench) -> None:
    async with anyio.create_task_group() as tasks:
        folders = PackageFolders(bench.cache.claim_derived, tasks, os_build="os-1")
        (await bench.lent(folders, bench.worker()) / "half").write_bytes(b"pro")
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    async with bench.folders() as later:
        next_one = bench.worker()
        assert not list((await bench.lent(later, next_one)).iterdir())
        end(next_one)


async def test_files_outside_the_cache_and_a_cache_that_fails_give_no_folder(bench: Bench) -> None:
    def broken(source: str, toolchain: Mapping[str, Any]) -> None:
        raise StoreFailure("the disk is full")

    async with bench.folders() as folders, anyio.create_task_group() as tasks:
        assert await folders.of(bench.worker(), replace(bench.model, model_sha256="a" * 64)) is None
        assert await PackageFolders(broken, tasks, os_build="os").of(bench.worker(), bench.model) is None


async def test_load_names_the_folder(bench: Bench) -> None:
    held = HeldWorker()

    async def start(model: RegisteredModel) -> Any:
        return held

    async def nothing(model: RegisteredModel) -> Any:
        return None

    async def packages(worker: Any, model: RegisteredModel) -> str | None:
        return f"/packages of {worker.pid}"

    async with anyio.create_task_group() as tasks:
        lane = Lane(bench.model, _runtime(start, nothing, tasks, packages))
        tasks.start_soon(lane.load)
        await until(lambda: held.asked)
        ((message, _),) = held._asked
        assert isinstance(message, Load)
        assert message.runtime_config["package_cache_root"] == "/packages of 0"
        tasks.cancel_scope.cancel()
    assert "package_cache_root" not in bench.model.runtime_config(threads=0)


def _runtime(start: Any, tokenizer: Any, tasks: TaskGroup, packages: Any) -> LaneRuntime:
    return LaneRuntime(start, tokenizer, DeviceTurns(), tasks, lambda: 0.0, packages=packages)
