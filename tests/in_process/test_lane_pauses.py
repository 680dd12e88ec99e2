"""Pauses carried out on real lanes of the Neural Engine's class, whose workers do what the test says."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed, FlowScopeRefused, InvalidRequest, SynapseError
from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.operations.lane_pausing import LanePausingService
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.testing.workers.held_worker import HeldWorker
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio
MINUTE = 60_000


@dataclass
class Lock:
    """The lock, with what happens to it as the test says."""

    path: Any = "/u/neural-engine.lock"
    held: bool = True
    taken_by_others: bool = False
    stuck: bool = False
    fault: OSError | None = None
    calls: list[str] = field(default_factory=list)

    def acquire(self) -> bool:
        self.calls.append("acquire")
        if self.fault is not None:
            raise self.fault
        self.held = not self.taken_by_others
        return self.held

    def release(self) -> None:
        self.calls.append("release")
        if self.stuck:
            raise OSError("bad descriptor")
        self.held = False


def model(model_id: str, engine: str) -> RegisteredModel:
    empty: dict[str, Any] = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    said: dict[str, Any] = {
        "model_id": model_id,
        "engine": EngineIdentity(engine, "1", {}),
        "fingerprint": model_id.ljust(64, "f"),
        "normalize": True,
        "max_tokens": 8,
        "vocab_size": 100,
        "catalog_id": None,
        "batch": BatchPolicy(2, 100),
    }
    return RegisteredModel(**{**empty, **said})


@dataclass
class Bench:
    """Lanes, their pause, and the methods."""

    control: PauseControl
    lock: Lock
    registry: Registry
    lanes: LaneTable
    workers: dict[str, HeldWorker]
    tasks: TaskGroup

    async def call(self, method: str, flow: str | None = None, /, **params: Any) -> dict[str, Any]:
        answer = (await self.registry.dispatch(method, params, RequestContext(0.0, flow_id=flow))).payload
        assert answer.pop("module_generation") == 7
        return answer

    async def pause(self, duration_ms: int = MINUTE) -> dict[str, Any]:
        return await self.call("lanes.pause", scope="neural_engine", duration_ms=duration_ms, reason="measuring")

    async def phase(self, phase: str) -> dict[str, Any]:
        await until(lambda: self.control.state.phase == phase)
        return await self.call("lanes.status")

    def lane(self, model_id: str) -> Lane:
        return self.lanes.get(model_id)

    async def loaded(self, model_id: str) -> HeldWorker:
        lane = self.lane(model_id)
        self.tasks.start_soon(lane.load)
        await until(lambda: model_id in self.workers and self.workers[model_id].asked)
        self.workers[model_id].agree()
        await until(lambda: lane.state is LaneState.READY)
        return self.workers[model_id]

    async def unloads(self, model_id: str) -> None:
        await until(lambda: self.workers[model_id].asked == ["UNLOAD"])
        self.workers[model_id].agree()


async def nothing_more() -> None:
    return None


@asynccontextmanager
async def bench(*, worker_type: type[HeldWorker] = HeldWorker, retry_s: float = 0.0) -> AsyncIterator[Bench]:
    lanes, lock, workers = LaneTable(), Lock(), {}

    async def start(it: RegisteredModel) -> Any:
        workers[it.model_id] = worker_type()
        return workers[it.model_id]

    async def no_tokenizer(it: RegisteredModel) -> Any:
        return None

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            control = PauseControl(lanes, lock, tasks, now_ms=lambda: 1_000_000, clock=time.monotonic, retry_s=retry_s)
            runtime = LaneRuntime(start, no_tokenizer, DeviceTurns(), tasks, time.monotonic, refuse_load=control.refuse)
            for name, engine in (
                ("direct", "ane-direct-worker"),
                ("coreml", "ane-coreml-worker"),
                ("other", "owned-metal"),
            ):
                lanes.put(Lane(model(name, engine), runtime))
            registry = Registry(LanePausingService(control, nothing_more, 7).methods())
            yield Bench(control, lock, registry, lanes, workers, tasks)
            tasks.cancel_scope.cancel()


async def test_a_pause_of_cold_lanes_frees_the_hardware_and_its_end_brings_it_back() -> None:
    async with bench() as it:
        asked = await it.pause()
        assert asked == {
            "paused_until_ms": 1_000_000 + MINUTE,
            "reason": "measuring",
            "lane_ids": ["coreml", "direct"],
            "phase": "draining",
            "hardware_free": False,
        }
        assert await it.phase("paused") == asked | {"phase": "paused", "hardware_free": True}
        assert not it.lock.held
        running = {"phase": "running", "hardware_free": False, "lane_ids": []}
        assert await it.call("lanes.resume") == running
        assert it.lock.held
        assert await it.call("lanes.resume") == running
        assert await it.call("lanes.status") == running


async def test_admitted_requests_end_before_the_worker_goes_and_others_are_not_touched() -> None:
    async with bench() as it:
        worker, other = await it.loaded("direct"), await it.loaded("other")
        answers: list[bytes] = []

        async def ask() -> None:
            lane = it.lane("direct")
            with lane.lease():
                answers.append((await lane.embed([[5]], ["a"]))[1])

        it.tasks.start_soon(ask)
        await until(lambda: worker.begun)
        await it.pause()
        await anyio.wait_all_tasks_blocked()
        assert worker.asked == []
        assert (await it.call("lanes.status"))["phase"] == "draining"
        worker.answer()
        await it.unloads("direct")
        assert (await it.phase("paused"))["hardware_free"]
        assert len(answers) == 1
        assert it.lane("direct").state is LaneState.UNLOADED
        assert it.lane("other").state is LaneState.READY
        assert other.fault is None


async def test_a_paused_lane_is_refused_before_it_is_loaded_and_the_others_are_not() -> None:
    async with bench() as it:
        await it.pause()
        for name in ("direct", "coreml"):
            with pytest.raises(SynapseError) as refusal:
                it.control.refuse(it.lane(name).model)
            assert refusal.value.code == "lane_paused"
            assert refusal.value.details is not None
            assert refusal.value.details["lane_id"] == name
            with pytest.raises(SynapseError, match="paused by an operator"):
                await it.lane(name).load()
            assert it.lane(name).state is LaneState.UNLOADED
        it.control.refuse(it.lane("other").model)
        await it.loaded("other")


async def test_a_load_in_progress_ends_and_is_unloaded_again() -> None:
    async with bench() as it:
        it.tasks.start_soon(it.lane("direct").load)
        await until(lambda: "direct" in it.workers and it.workers["direct"].asked)
        await it.pause()
        await anyio.wait_all_tasks_blocked()
        assert (await it.call("lanes.status"))["phase"] == "draining"
        it.workers["direct"].agree()
        await it.unloads("direct")
        await it.phase("paused")


async def test_resuming_stops_waiting_for_the_drain_and_cuts_nothing_off(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as it:
        worker = await it.loaded("direct")
        with it.lane("direct").lease(), caplog.at_level(logging.WARNING):
            await it.pause()
            await anyio.wait_all_tasks_blocked()
            assert (await it.call("lanes.resume"))["phase"] == "running"
            assert any("never free; not unloaded: direct" in text for text in caplog.messages)
            await anyio.wait_all_tasks_blocked()
        assert "release" not in it.lock.calls
        await anyio.wait_all_tasks_blocked()
        assert worker.asked == []
        assert it.lane("direct").state is LaneState.READY


async def test_an_unload_that_runs_when_the_pause_ends_runs_to_its_end() -> None:
    async with bench() as it:
        worker = await it.loaded("direct")
        await it.pause()
        await until(lambda: worker.asked == ["UNLOAD"])
        assert (await it.call("lanes.resume"))["phase"] == "running"
        assert it.lane("direct").state is LaneState.UNLOADING
        worker.agree()
        await until(lambda: it.lane("direct").state is LaneState.UNLOADED)
        assert "release" not in it.lock.calls


async def test_time_ends_a_pause_by_itself_in_any_phase() -> None:
    async with bench() as it:
        await it.pause(30)
        await it.phase("running")
        assert it.lock.held
        await it.loaded("direct")
        with it.lane("direct").lease():
            await it.pause(30)
            await it.phase("running")
        assert it.lane("direct").state is LaneState.READY


async def test_lanes_stay_paused_while_another_process_has_the_lock(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as it:
        await it.pause()
        await it.phase("paused")
        it.lock.taken_by_others = True
        with caplog.at_level(logging.WARNING):
            assert (await it.call("lanes.resume"))["phase"] == "waiting_for_lock"
            await until(lambda: it.lock.calls.count("acquire") >= 3)
        assert sum("still holds its lock, /u/neural-engine.lock;" in text for text in caplog.messages) >= 3
        with pytest.raises(SynapseError, match=r"gives the hardware's lock back, /u/neural-engine\.lock"):
            it.control.refuse(it.lane("direct").model)
        it.lock.fault = OSError(21, "Is a directory", "/u/neural-engine.lock")
        tried = it.lock.calls.count("acquire")
        await until(lambda: it.lock.calls.count("acquire") > tried + 1)
        fault = (await it.call("lanes.status"))["comes_back_when"]
        assert fault == "its lock can be taken: [Errno 21] Is a directory: '/u/neural-engine.lock'"
        it.lock.fault = None
        status = await it.call("lanes.resume")
        assert (status["phase"], status["hardware_free"]) == ("waiting_for_lock", False)
        with pytest.raises(SynapseError) as refusal:
            it.control.refuse(it.lane("direct").model)
        assert refusal.value.retry_after_ms == 1000
        with pytest.raises(InvalidRequest, match=r"active already.*it is over and waits for another process"):
            await it.pause()
        it.lock.taken_by_others = False
        await it.phase("running")
        it.control.refuse(it.lane("direct").model)


async def test_a_lock_that_cannot_be_given_back_is_told_and_tried_again() -> None:
    async with bench() as it:
        it.lock.stuck = True
        await it.pause()
        status = await it.phase("drain_failed")
        assert status["drain_error"]["lane_id"] is None
        assert (status["drain_error"]["stage"], status["hardware_free"]) == ("release_lock", False)
        await until(lambda: it.lock.calls.count("release") >= 3)
        it.lock.stuck = False
        assert "drain_error" not in await it.phase("paused")


class Immortal(HeldWorker):
    """A worker whose end cannot be confirmed."""

    async def stop(self, **_: Any) -> None:
        raise EngineCrashed("the process does not end")


async def test_an_unload_that_fails_keeps_the_lock_until_the_pause_ends(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(worker_type=Immortal) as it:
        await it.loaded("direct")
        await it.pause()
        await it.unloads("direct")
        status = await it.phase("drain_failed")
        assert status["drain_error"] == {
            "lane_id": "direct",
            "stage": "unload",
            "code": "engine_crashed",
            "message": "the process does not end",
        }
        assert it.lock.held
        assert "release" not in it.lock.calls
        with caplog.at_level(logging.WARNING):
            assert (await it.call("lanes.resume"))["phase"] == "running"
        assert any("ends undrained: direct" in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("params", "parameter"),
    [
        ({"scope": "gpu"}, "scope"),
        ({"duration_ms": 0}, "duration_ms"),
        ({"duration_ms": -5}, "duration_ms"),
        ({"duration_ms": 7_200_001}, "duration_ms"),
        ({"reason": ""}, "reason"),
        ({"reason": " \t"}, "reason"),
        ({"reason": "x" * 257}, "reason"),
    ],
)
async def test_what_cannot_be_paused_is_refused(params: dict[str, Any], parameter: str) -> None:
    async with bench() as it:
        fit = {"scope": "neural_engine", "duration_ms": 7_200_000, "reason": "x"}
        with pytest.raises(InvalidRequest) as refusal:
            await it.call("lanes.pause", **(fit | params))
        assert not refusal.value.channel
        assert refusal.value.details is not None
        assert refusal.value.details["parameter"] == parameter
        assert len(str(refusal.value)) < 400
        assert not it.control.state.active
        assert (await it.call("lanes.pause", **fit))["phase"] == "draining"


async def test_a_second_pause_is_refused_and_leaves_the_first_as_it_is() -> None:
    async with bench() as it:
        first = await it.pause()
        with pytest.raises(InvalidRequest, match="active already") as refusal:
            await it.pause(5)
        assert refusal.value.details == {"paused_until_ms": first["paused_until_ms"], "phase": "draining"}
        assert (await it.phase("paused"))["paused_until_ms"] == first["paused_until_ms"]


async def test_malformed_parameters_and_flows_are_refused_on_the_channel() -> None:
    async with bench() as it:
        for params in ({}, {"scope": "neural_engine", "duration_ms": "5", "reason": "x"}):
            with pytest.raises(InvalidRequest) as refusal:
                await it.call("lanes.pause", **params)
            assert refusal.value.channel
        with pytest.raises(InvalidRequest) as refusal:
            await it.call("lanes.resume", now=True)
        assert refusal.value.channel
        for method in ("lanes.pause", "lanes.resume"):
            with pytest.raises(FlowScopeRefused):
                await it.call(method, "flow-1")
        await it.call("lanes.status", "flow-1")


async def test_a_lane_registered_during_a_pause_is_paused_too() -> None:
    async with bench() as it:
        await it.pause()
        await it.phase("paused")
        late = Lane(model("late", "ane-direct-worker"), it.lane("direct")._residency._runtime)
        it.lanes.put(late)
        assert (await it.call("lanes.status"))["lane_ids"] == ["coreml", "direct", "late"]
        with pytest.raises(SynapseError, match="paused by an operator"):
            await late.load()


async def test_no_worker_starts_without_the_lock() -> None:
    async with bench() as it:
        it.lock.taken_by_others = True
        with pytest.raises(SynapseError, match="another process of this user holds its lock") as refusal:
            it.control.require_lock(it.lane("direct").model)
        assert refusal.value.code == "ane_resources_exhausted"
        it.control.require_lock(it.lane("other").model)
        it.lock.fault = OSError(13, "Permission denied", "/u/neural-engine.lock")
        with pytest.raises(
            SynapseError, match=r"cannot be taken: .*'/u/neural-engine.lock'; make that place"
        ) as refusal:
            it.control.require_lock(it.lane("direct").model)
        assert refusal.value.code == "ane_resources_exhausted"
        it.lock.fault = None
        it.lock.taken_by_others = False
        it.control.require_lock(it.lane("direct").model)
        await it.pause()
        with pytest.raises(SynapseError, match="paused by an operator"):
            it.control.require_lock(it.lane("direct").model)
