"""admission.status: what is counted, which lanes count, and what a snapshot says of each."""

from __future__ import annotations

import dataclasses
import time
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.device_turns import Devices
from synapse_host.admission.gate import Gate
from synapse_host.admission.refusals import Refusals
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.ledger import Certification, CertificationLedger
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.errors import InvalidRequest, QueueFull, StoreFailure
from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.machine_profile import MachineProfile
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.jobs.counters import JobCounters
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_pace import REMEMBERED_S, LanePace
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.operations.constraints import Constraints
from synapse_host.operations.registry import Method, Registry, Reply, RequestContext
from synapse_host.operations.status import HostFacts, StatusService
from synapse_host.testing.workers.held_worker import HeldWorker
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio
PROFILE = "p" * 64


def model(model_id: str, **changes: Any) -> RegisteredModel:
    empty: dict[str, Any] = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    said: dict[str, Any] = {
        "model_id": model_id,
        "engine": EngineIdentity("owned-cpu", "1", {}),
        "fingerprint": model_id.ljust(64, "f"),
        "task": "embed",
        "device_class": "cpu",
        "normalize": True,
        "max_tokens": 8,
        "vocab_size": 100,
        "catalog_id": None,
        "manifest_digest": "d",
        "batch": BatchPolicy(2, 100),
    }
    return RegisteredModel(**{**empty, **said, **changes})


def certified(of: RegisteredModel, status: Any = "certified") -> Certification:
    return Certification(of.fingerprint, PROFILE, status, None, {}, "os", 1, 1)


async def no_jobs() -> list[dict[str, Any]]:
    return []


class Bench:
    """A status service over lanes whose workers do what the test says."""

    def __init__(self, tasks: Any) -> None:
        self.devices, self.lanes, self.tasks = Devices(), LaneTable(), tasks
        self.ledger, self.jobs = CertificationLedger(lambda model: PROFILE), JobCounters()
        self.gate = Gate(byte_budget=1000, clock=time.monotonic)
        self.refusals = Refusals(iter(range(100, 999)).__next__)
        self.workers: dict[str, HeldWorker] = {}
        self.checked = SimpleNamespace(row=lambda lane: SimpleNamespace(to_wire=lambda: {"state": "passed"}))
        self.now = 1000.0
        self.recent_jobs: Any = no_jobs
        self.store_fault: StoreFailure | None = None

    def put(self, it: RegisteredModel) -> Lane:
        async def start(of: RegisteredModel) -> Any:
            self.workers[of.model_id] = HeldWorker()
            return self.workers[of.model_id]

        async def no_tokenizer(of: RegisteredModel) -> Any:
            return None

        turns = self.devices.of(it.device_class)
        lane = Lane(it, LaneRuntime(start, no_tokenizer, turns, self.tasks, time.monotonic))
        self.lanes.put(lane)
        return lane

    async def load(self, lane: Lane) -> None:
        name = lane.model.model_id
        self.tasks.start_soon(lane.load)
        await until(lambda: name in self.workers and self.workers[name].asked)
        self.workers[name].agree()
        await until(lambda: lane.state is LaneState.READY)

    async def status(self) -> dict[str, Any]:
        service = StatusService(
            self.lanes,
            self.ledger,
            cast("SelfChecks", self.checked),
            self.gate,
            self.devices,
            self.refusals,
            self.jobs,
            self.recent_jobs,
            cast("MachineProfile", SimpleNamespace(hash="m" * 64)),
            HostFacts(0.0, lambda: self.now, lambda: 1, 64, 1000),
            7,
            lambda: self.store_fault,
        )
        (method,) = service.methods()
        return (await method.handler(None, RequestContext(0.0))).payload


@pytest.fixture
async def bench() -> Any:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            yield Bench(tasks)
            tasks.cancel_scope.cancel()


async def test_certified_counts_are_of_probe_gated_lanes_loaded_or_not(bench: Bench) -> None:
    certain = bench.put(model("certain"))
    bench.put(model("never-probed"))
    failed = bench.put(model("failed"))
    of_catalog = bench.put(model("gte-metal", catalog_id="gte"))
    bench.put(model("writes", task="generate", manifest_digest=None))
    for lane, status in ((certain, "certified"), (failed, "uncertified"), (of_catalog, "certified")):
        bench.ledger.record(certified(lane.model, status), None)
    answer = await bench.status()
    assert (answer["catalog_lanes"], answer["certified_lanes"]) == (5, 1)
    assert (answer["certification_stale"], answer["performance_stale"]) == (0, 0)
    assert answer["lanes"] == []


async def test_what_was_measured_on_another_profile_is_stale_until_it_is_probed_here(bench: Bench) -> None:
    lane, of_catalog = bench.put(model("moved")), bench.put(model("gte-metal", catalog_id="gte"))
    for each in (lane, of_catalog):
        bench.ledger.record_outdated(each.model)
    assert ((await bench.status())["certification_stale"], (await bench.status())["performance_stale"]) == (1, 1)
    await bench.load(lane)
    (row,) = (await bench.status())["lanes"]
    assert (row["certified"], row["certification_stale"]) == (False, True)
    bench.ledger.record(certified(lane.model), None)
    (row,) = (await bench.status())["lanes"]
    assert (row["certified"], row["certification_stale"], row["machine_profile_hash"]) == (True, False, PROFILE)
    assert (await bench.status())["certification_stale"] == 0


async def test_lanes_are_the_resident_ones_and_those_of_the_catalog_have_their_self_check(bench: Bench) -> None:
    loaded, of_catalog = bench.put(model("loaded")), bench.put(model("gte-metal", catalog_id="gte"))
    bench.put(model("unloaded"))
    for lane in (loaded, of_catalog):
        await bench.load(lane)
    rows = {row["model_id"]: row for row in (await bench.status())["lanes"]}
    assert set(rows) == {"loaded", "gte-metal"}
    live = {
        "meeting_deadlines": True,
        "p50_start_delay_ms": None,
        "execution_waiters": 0,
        "inline_in_flight_executions": 0,
    }
    assert rows["gte-metal"] == {
        "model_id": "gte-metal",
        "fingerprint": of_catalog.model.fingerprint,
        **live,
        "certification_required": False,
        "certification_status": "not_required",
        "self_check": {"state": "passed"},
    }
    assert rows["loaded"].items() >= {**live, "certified": False}.items()
    assert "self_check" not in rows["loaded"]


async def test_a_store_that_cannot_be_read_is_told_and_the_rest_is_answered(bench: Bench) -> None:
    async def gone() -> list[dict[str, Any]]:
        raise StoreFailure("the file is not there any more")

    assert "store_fault" not in (await bench.status())["health"]
    bench.recent_jobs = gone
    answer = await bench.status()
    assert answer["jobs_recent"] == []
    assert (answer["health"]["degraded"], answer["health"]["store_fault"]) == (True, "the file is not there any more")


async def test_a_store_that_can_be_read_and_not_written_is_degraded_too(bench: Bench) -> None:
    bench.store_fault = StoreFailure("the disk is full")
    health = (await bench.status())["health"]
    assert (health["degraded"], health["store_fault"]) == (True, "the disk is full")
    bench.store_fault = None
    health = (await bench.status())["health"]
    assert (health["degraded"], "store_fault" in health) == (False, False)


async def test_live_figures_follow_the_groups_of_a_lane(bench: Bench) -> None:
    lane = bench.put(model("loaded"))
    await bench.load(lane)
    for first in (1, 2):
        bench.tasks.start_soon(lane.embed, [[first]], ["a"], WorkClass.INTERACTIVE)
    await until(lambda: lane.turns.waiting == 1)
    answer = await bench.status()
    assert answer["queues"] == {"control": 0, "interactive": 1, "bulk": 0}
    assert (answer["execution_waiters"], answer["inline_in_flight_executions"]) == (1, 1)
    (row,) = answer["lanes"]
    assert (row["execution_waiters"], row["inline_in_flight_executions"]) == (1, 1)
    worker = bench.workers["loaded"]
    worker.answer()
    worker.answer()
    answer = await bench.status()
    (row,) = answer["lanes"]
    assert (row["execution_waiters"], row["inline_in_flight_executions"]) == (0, 0)
    assert row["p50_start_delay_ms"] == 0.0
    assert answer["execution_wait_p95_ms"] > answer["execution_wait_p50_ms"] == 0.0


async def test_a_group_that_is_withdrawn_waits_no_more(bench: Bench) -> None:
    lane = bench.put(model("loaded"))
    await bench.load(lane)
    bench.tasks.start_soon(lane.embed, [[1]], ["a"])
    await until(lambda: lane.turns.running == 1)
    with anyio.move_on_after(0.01):
        await lane.embed([[2]], ["b"])
    assert (lane.pace.waiting, lane.pace.running) == (0, 1)
    bench.workers["loaded"].answer()
    assert lane.pace.running == 0


async def test_groups_of_jobs_count_as_bulk(bench: Bench) -> None:
    turns = bench.devices.of("cpu")
    for work_class in (WorkClass.CONTROL, WorkClass.JOB, WorkClass.BULK, WorkClass.CONTROL):
        turns.ask(Turn(lambda: None, work_class))
    assert (await bench.status())["queues"] == {"control": 1, "interactive": 0, "bulk": 2}


async def test_jobs_are_counted_by_whoever_keeps_them(bench: Bench) -> None:
    bench.jobs.admitted(3)
    bench.jobs.ended(completed=True)
    bench.jobs.ended(completed=False, inherited=True)
    answer = await bench.status()
    figures = {name: answer[name] for name in answer if name.startswith("jobs_") and name != "jobs_recent"}
    assert figures == {
        "jobs_minted": 3,
        "jobs_completed": 1,
        "jobs_failed": 1,
        "jobs_inherited": 1,
        "jobs_open": 2,
    }


async def test_refusals_are_counted_by_code_with_the_time_of_the_last(bench: Bench) -> None:
    async def refuse(params: Constraints, context: RequestContext) -> Reply:
        raise QueueFull("full") if params.deadline_ms else InvalidRequest("never")

    seen: list[tuple[str, str]] = []
    method = Method("embed.query", "query", Constraints, refuse)
    registry = Registry(
        [method], lambda it, refusal: (seen.append((it.name, refusal.code)), bench.refusals.note(refusal.code))[0]
    )
    for params in ({"deadline_ms": 5}, {}, {"deadline_ms": 5}):
        with pytest.raises((QueueFull, InvalidRequest)):
            await registry.dispatch("embed.query", params, RequestContext(0.0))
    with pytest.raises(InvalidRequest):
        await registry.dispatch("embed.query", {"deadline_ms": "x"}, RequestContext(0.0))
    assert [code for _, code in seen] == ["queue_full", "invalid_request", "queue_full"]
    assert (await bench.status())["refusals"] == {
        "invalid_request": {"count": 1, "last_at_ms": 101},
        "queue_full": {"count": 2, "last_at_ms": 102},
    }


def test_a_missed_deadline_is_held_against_a_lane_for_a_minute() -> None:
    pace = LanePace()
    assert pace.meets_deadlines(0.0)
    pace.missed(100.0)
    assert not pace.meets_deadlines(100.0 + REMEMBERED_S)
    assert pace.meets_deadlines(100.1 + REMEMBERED_S)
