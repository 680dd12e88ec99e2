"""Lanes that share one real worker process: shapes admitted and dropped over its socket, its death and its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed
from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.neural_engine import NeuralEngine
from synapse_host.lanes.shape_residency import Limits
from synapse_host.lanes.worker_share import shapes_of
from synapse_host.models.catalog_package import release_after
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.fake_distributions import install_backend
from synapse_host.testing.running_host import python_path
from synapse_host.testing.shape_worker import shaped_model
from synapse_host.testing.workers.fake_engine import load_request
from synapse_host.testing.workers.full_engine import full_engine
from synapse_host.testing.workers.running_worker import PATIENCE_S, unpacked_floats
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio
#: The ladder of the engine of the tests is 16 and 32.
SHORT, LONG = [3] * 10, [5] * 20


@dataclass
class Bench:
    """Two lanes on one worker at a time, and the lock."""

    engine: NeuralEngine
    lock: FileLock
    workers: list[Worker] = field(default_factory=list)
    lanes: dict[str, Lane] = field(default_factory=dict)

    async def embed(self, lane: str, *rows: list[int]) -> list[float]:
        it = self.lanes[lane]
        with it.lease():
            await it.load()
            return unpacked_floats((await it.embed(rows, [str(at) for at in range(len(rows))]))[1])

    def shapes(self) -> list[tuple[str, int]]:
        return [(row["lane_id"], row["shape"]) for row in self.engine.to_wire()["shapes"]]


def model(folder: Path, name: str) -> RegisteredModel:
    """One the engine of the tests loads."""
    message = load_request(folder)
    config = message.runtime_config
    return replace(
        shaped_model(name, 2),
        model_path=message.artifact_path,
        model_sha256=message.artifact_digest,
        format=message.format,
        config_path=config["config_path"],
        config_sha256=config["config_digest"],
        family="bert",
        dtype="f32",
        max_tokens=32,
    )


@asynccontextmanager
async def bench(folder: Path, limits: Limits | None = None) -> AsyncIterator[Bench]:
    site = folder / "site"
    site.mkdir()
    install_backend(site, "fake", full_engine())
    lock = FileLock(folder / "neural-engine.lock")
    assert lock.acquire()

    async def start(it: RegisteredModel) -> Worker:
        number = len(made.workers)
        spec = WorkerSpec(
            "fake",
            f"synapse-fake-{number}",
            folder / f"{number}.sock",
            accept_deadline_s=PATIENCE_S,
            hello_deadline_s=PATIENCE_S,
            extra_env=python_path(site),
            stdin=lock.descriptor,
        )
        made.workers.append(await Worker.start(spec, tasks))
        lock.inherited(made.workers[-1].exited.is_set)
        return made.workers[-1]

    async def layers(it: RegisteredModel) -> int:
        return 2

    async def no_tokenizer(it: RegisteredModel) -> Any:
        return None

    async with anyio.create_task_group() as tasks:
        turns = DeviceTurns()
        engine = NeuralEngine(start, turns, tasks, time.monotonic, limits=limits, layers=layers)
        made = Bench(engine, lock)

        async def share(it: RegisteredModel) -> Worker:
            return cast("Worker", await engine.share(it))

        runtime = LaneRuntime(share, no_tokenizer, turns, tasks, time.monotonic, shapes_of=shapes_of)
        made.lanes = {name: Lane(model(folder, name), runtime) for name in ("one", "two")}
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                for lane in made.lanes.values():
                    await lane.close()
            tasks.cancel_scope.cancel()


async def test_two_models_share_a_process_and_its_room(tmp_path: Path) -> None:
    async with bench(tmp_path, Limits(executables=6)) as it:
        assert await it.embed("one", LONG, SHORT) == [*await it.embed("one", LONG), *await it.embed("one", SHORT)]
        await it.embed("two", SHORT)
        assert it.shapes() == [("one", 16), ("one", 32), ("two", 16)]
        await it.embed("two", LONG)
        assert it.shapes() == [("one", 16), ("two", 16), ("two", 32)]
        assert len(it.workers) == 1
        shown = it.engine.to_wire()
        assert (shown["executables"], shown["worker_pid"]) == (6, it.workers[0].pid)
        assert shown["inventories"][0]["cpu_stages"] == ["tokenize", "pool"]
        await it.lanes["one"].unload()
        assert it.workers[0].alive
        await it.lanes["two"].unload()
        assert it.workers[0].exited.is_set()
        it.lock.release()


async def test_the_files_of_a_model_are_free_once_it_left_the_process_that_others_go_on_using(tmp_path: Path) -> None:
    async with bench(tmp_path) as it, anyio.create_task_group() as tasks:
        released: list[str] = []

        async def hold(name: str) -> Worker:
            with ExitStack() as files:
                files.callback(released.append, name)
                worker = cast("Worker", await it.engine.share(model(tmp_path, name)))
                tasks.start_soon(release_after, worker, files.pop_all())
            await worker.request(load_request(tmp_path), operation="load")
            return worker

        one, two = await hold("one"), await hold("two")
        await anyio.wait_all_tasks_blocked()
        assert released == []
        await one.stop()
        await until(lambda: released == ["one"])
        assert it.workers[0].alive
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await until(lambda: released == ["one", "two"])
        assert two.closed.is_set()


async def test_a_killed_worker_takes_its_shapes_with_it_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.embed("one", SHORT)
        await it.embed("two", LONG)
        os.kill(it.workers[0].pid, signal.SIGKILL)
        await until(lambda: all(lane.state is LaneState.UNLOADED for lane in it.lanes.values()))
        await until(lambda: it.engine.shapes.residency.spent == 0)
        assert {name: lane.strikes.count for name, lane in it.lanes.items()} == {"one": 1, "two": 1}
        await it.embed("two", SHORT)
        assert it.shapes() == [("two", 16)]
        assert len(it.workers) == 2


async def test_a_worker_that_dies_over_one_models_rows_is_that_models_strike(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.embed("two", SHORT)
        with it.lanes["one"].lease():
            await it.lanes["one"].load()
            os.kill(it.workers[0].pid, signal.SIGSTOP)
            async with anyio.create_task_group() as tasks:

                async def fails() -> None:
                    with pytest.raises(EngineCrashed):
                        await it.lanes["one"].embed([SHORT], ["a"])

                tasks.start_soon(fails)
                await anyio.wait_all_tasks_blocked()
                os.kill(it.workers[0].pid, signal.SIGKILL)
        await until(lambda: it.lanes["two"].state is LaneState.UNLOADED)
        assert {name: lane.strikes.count for name, lane in it.lanes.items()} == {"one": 1, "two": 0}
        assert await it.embed("two", SHORT)


async def test_the_lock_stays_with_the_worker_while_it_lives(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.embed("one", SHORT)
        with pytest.raises(OSError, match="not known to have ended"):
            it.lock.release()
        await it.lanes["one"].unload()
        it.lock.release()
        assert FileLock(tmp_path / "neural-engine.lock").acquire()
