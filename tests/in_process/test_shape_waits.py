"""What is told to requests whose time passes while a shape is compiled, and what a pause does to shapes."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from synapse_host.admission.gate import Budget, Gate
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.operations.constraints import BudgetRule
from synapse_host.operations.serving import ServingDesk
from synapse_host.testing.shape_calls import Call, asked, served, stepped
from synapse_host.testing.shape_worker import ShapeBench, shape_bench
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio


async def late(bench: ShapeBench, call: Call) -> str | None:
    """What the request is told whose deadline passes now."""
    call.task.cancel()
    await bench.settle()
    error = call.lane.compiling(call.plan)
    return None if error is None else f"{error.code} {(error.details or {})['shape']}"


async def test_a_wait_for_its_own_compilation_or_anothers_is_shape_compiling() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        own = Call(bench, "gte", 200)
        await bench.settle()
        others = Call(bench, "gte", 10)
        await bench.settle()
        assert await late(bench, own) == "shape_compiling 256"
        assert await late(bench, others) == "shape_compiling 256"


async def test_a_wait_for_the_worker_while_it_computes_is_not() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        running, waiting = Call(bench, "gte", 10), Call(bench, "gte", 10)
        await bench.settle()
        assert await late(bench, waiting) is None
        assert await late(bench, running) is None


async def test_a_compilation_that_ended_counts_for_the_waits_it_was_part_of() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        compiled = Call(bench, "gte", 200)
        await bench.settle()
        waiting, third = Call(bench, "gte", 10), Call(bench, "gte", 11)
        await bench.settle()
        bench.now += 10
        await stepped(bench)
        assert asked(bench)[0] == "EMBED_BATCH"
        newcomer = Call(bench, "gte", 12)
        await bench.settle()
        assert await late(bench, third) == "shape_compiling 256"
        bench.now += 1
        assert await late(bench, newcomer) is None
        await stepped(bench)
        await stepped(bench)
        await compiled.task
        await waiting.task


async def test_a_request_that_computes_is_late_and_not_compiling() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        bench.now += 10
        await stepped(bench)
        assert await late(bench, call) is None


async def test_the_desk_says_so_when_the_deadline_passes_and_the_retry_finds_the_shape() -> None:
    async with shape_bench() as bench:
        lane = bench.lanes["gte"]
        await lane.load()
        budgets = BudgetRule(deadline_ms=200, max_queue_ms=200, clock=time.monotonic)
        desk = ServingDesk(cast("Any", None), Gate(byte_budget=1000, clock=time.monotonic), AliasTable(), budgets, 1)
        budget = Budget(time.monotonic() + 0.2, 200, 200)
        plan = lane.plan("embed", [10], WorkClass.INTERACTIVE)

        async def compute() -> Any:
            return await lane.embed([[1] * 10], ["a"], plan)

        with pytest.raises(SynapseError) as refused:
            await desk.computed(lane, budget, plan, compute)
        assert refused.value.code == "shape_compiling"
        assert refused.value.details == {"lane_id": "gte", "shape": 128}
        assert refused.value.retry_after_ms == 1000
        await bench.settle()
        await stepped(bench)
        assert await served(bench, "gte", 10)
        assert bench.engine.shapes.admissions == 1


# --- pauses --------------------------------------------------------------------------------------------------------


async def test_a_pause_lets_admitted_work_end_its_compilation_included_and_frees_the_hardware() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        assert bench.lock.held
        assert bench.control.begin(60_000, "measuring")
        refused = Call(bench, "qwen", 10)
        await bench.settle()
        assert refused.code() == "lane_paused"
        assert bench.control.status()["phase"] == "draining"
        await stepped(bench)
        await stepped(bench)
        assert await call.task
        await bench.settle()
        assert bench.control.status()["phase"] == "paused"
        assert bench.worker.exited.is_set()
        assert not bench.lock.held
        bench.control.resume()
        assert bench.lock.held
        assert await served(bench, "gte", 10)


async def test_a_worker_that_does_not_end_is_no_free_hardware() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        bench.worker.keeps_process = True
        bench.control.begin(60_000, "measuring")
        await bench.settle()
        status = bench.control.status()
        assert (status["phase"], status["hardware_free"]) == ("drain_failed", False)
        assert cast("dict[str, Any]", status["drain_error"])["lane_id"] == "gte"
        assert bench.lock.held
        bench.worker.exited.set()
        bench.control.resume()
        await bench.settle()
        assert bench.control.status()["phase"] == "running"
        assert await served(bench, "gte", 10)


async def test_nothing_is_loaded_while_another_has_the_lock() -> None:
    async with shape_bench() as bench:
        bench.control.begin(60_000, "measuring")
        await bench.settle()
        bench.lock.taken_by_others = True
        bench.control.resume()
        await bench.settle()
        assert bench.control.status()["phase"] == "waiting_for_lock"
        refused = Call(bench, "gte", 10)
        await bench.settle()
        assert refused.code() == "lane_paused"
        bench.lock.taken_by_others = False
        await until(lambda: not bench.control.state.active)
        assert await served(bench, "gte", 10)


async def test_a_lock_of_another_process_refuses_the_load_outside_a_pause() -> None:
    async with shape_bench() as bench:
        bench.lock.taken_by_others = True
        call = Call(bench, "gte", 10)
        await bench.settle()
        assert call.code() == "ane_resources_exhausted"


async def test_a_load_of_a_model_beside_a_dying_worker_is_no_strike() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        other = asyncio.ensure_future(bench.lanes["qwen"].load())
        await bench.settle()
        bench.worker.die()
        await bench.settle()
        assert call.code() == "engine_crashed"
        assert isinstance(other.exception(), EngineCrashed)
        assert (bench.lanes["gte"].strikes.count, bench.lanes["qwen"].strikes.count) == (1, 0)
