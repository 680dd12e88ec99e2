"""Shapes of the Neural Engine as lanes meet them: compiled when first wanted, shared, dropped, lost with the worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from synapse_host.admission.gate import Budget, Gate
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.shape_residency import Limits
from synapse_host.operations.constraints import BudgetRule
from synapse_host.operations.serving import ServingDesk
from synapse_host.testing.shape_worker import ShapeBench, shape_bench
from synapse_host.testing.stub_lane import until
from synapse_host.worker_protocol.messages import AdmitShape, EmbedBatchRequest, EvictShape

pytestmark = pytest.mark.anyio


class Call:
    """One request for rows of the given numbers of tokens, and what became of it."""

    def __init__(self, bench: ShapeBench, lane: str, *counts: int) -> None:
        self.lane = bench.lanes[lane]
        self.rows = [[place + 1] * count for place, count in enumerate(counts)]
        self.plan: Any = None
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> bytes:
        with self.lane.lease():
            await self.lane.load()
            self.plan = self.lane.plan("embed", [len(row) for row in self.rows], WorkClass.BULK)
            return (await self.lane.embed(self.rows, [str(at) for at in range(len(self.rows))], self.plan))[1]

    def code(self) -> str:
        error = self.task.exception()
        assert isinstance(error, SynapseError)
        return error.code


def asked(bench: ShapeBench) -> tuple[str, int]:
    """What the worker has in hand: its type, and the shape or the rows."""
    message = bench.worker.in_hand
    if isinstance(message, EmbedBatchRequest):
        return message.TYPE, len(message.items)
    assert isinstance(message, AdmitShape | EvictShape)
    return message.TYPE, message.shape


async def step(bench: ShapeBench) -> None:
    bench.worker.answer()
    await bench.settle()


async def served(bench: ShapeBench, lane: str, *counts: int) -> bytes:
    """Rows computed to the end, whatever has to be compiled or dropped for them."""
    call = Call(bench, lane, *counts)
    await bench.settle()
    while not call.task.done():
        await step(bench)
    return await call.task


async def test_a_shape_is_compiled_when_it_is_first_wanted_and_used_after_that() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 100)
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        assert bench.turns.running == 0, "a compilation holds no permit"
        await step(bench)
        assert asked(bench) == ("EMBED_BATCH", 1)
        assert bench.turns.running == 1
        await step(bench)
        assert await call.task
        again = Call(bench, "gte", 128)
        await bench.settle()
        assert asked(bench) == ("EMBED_BATCH", 1)
        await step(bench)
        await again.task


async def test_rows_of_different_shapes_go_in_groups_of_one_shape_and_come_back_in_order() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 300, 5, 200, 7)
        seen = []
        await bench.settle()
        while not call.task.done():
            seen.append(asked(bench))
            await step(bench)
        assert seen == [
            ("ANE_ADMIT_SHAPE", 128),
            ("EMBED_BATCH", 2),
            ("ANE_ADMIT_SHAPE", 256),
            ("EMBED_BATCH", 1),
            ("ANE_ADMIT_SHAPE", 512),
            ("EMBED_BATCH", 1),
        ]
        assert memoryview(await call.task).cast("f").tolist() == [1.0, 2.0, 3.0, 4.0]


async def test_requests_for_one_shape_share_its_compilation_and_outlive_each_other() -> None:
    async with shape_bench() as bench:
        first, second = Call(bench, "gte", 10), Call(bench, "gte", 20)
        await bench.settle()
        first.task.cancel()
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        await step(bench)
        assert asked(bench) == ("EMBED_BATCH", 1)
        await step(bench)
        await second.task
        assert bench.engine.shapes.admissions == 1


async def test_a_compilation_goes_on_when_nobody_waits_for_it_any_more() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        call.task.cancel()
        await bench.settle()
        await step(bench)
        assert bench.engine.shapes.shapes_of("gte") == [
            {"lane_id": "gte", "shape": 128, "state": "resident", "executables": 22, "leases": 0}
        ]


async def test_the_budget_is_of_all_models_together_and_room_is_made_by_dropping() -> None:
    async with shape_bench() as bench:
        for length in (100, 200, 400):
            await served(bench, "qwen", length)
        call = Call(bench, "gte", 100)
        await bench.settle()
        assert asked(bench) == ("ANE_EVICT_SHAPE", 256), "the smallest rung is the last to go"
        assert bench.engine.shapes.residency.spent == 84
        await step(bench)
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        assert bench.engine.shapes.residency.spent == 78
        await step(bench)
        await step(bench)
        await call.task


async def test_nothing_begins_while_a_shape_is_compiled_and_its_time_is_nobodys() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        slow = Call(bench, "gte", 200)
        await bench.settle()
        quick = Call(bench, "gte", 10)
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 256)
        before, bench.now = bench.lanes["gte"].executed_ms, bench.now + 20
        assert (bench.turns.running, bench.turns.waiting) == (0, 1)
        await step(bench)
        while not (slow.task.done() and quick.task.done()):
            await step(bench)
        assert bench.lanes["gte"].executed_ms == before


async def test_a_shape_that_does_not_compile_fails_its_waits_and_takes_nothing() -> None:
    async with shape_bench() as bench:
        calls = [Call(bench, "gte", 10), Call(bench, "gte", 20), Call(bench, "gte", 200)]
        await bench.settle()
        bench.worker.refuse("ane_resources_exhausted")
        await bench.settle()
        assert [call.code() for call in calls[:2]] == ["ane_resources_exhausted"] * 2
        assert bench.engine.shapes.residency.spent == 22
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 256)
        assert bench.lanes["gte"].strikes.count == 0, "a refusal is no crash"
        assert bench.engine.to_wire()["compilations"] == [
            {"lane_id": "gte", "shape": 128, "took_ms": 0, "error": "ane_resources_exhausted"}
        ]
        calls[2].task.cancel()


async def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    async with shape_bench(Limits(executables=25)) as bench:
        call = Call(bench, "qwen", 10)
        await bench.settle()
        assert call.code() == "invalid_request"
        assert "28" in str(call.task.exception())
        assert "25" in str(call.task.exception())


async def test_the_death_of_the_worker_strikes_the_lane_whose_request_it_had_in_hand() -> None:
    async with shape_bench() as bench:
        await served(bench, "qwen", 10)
        guilty = Call(bench, "gte", 10)
        await bench.settle()
        waiting = Call(bench, "qwen", 10)
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        bench.worker.die()
        await bench.settle()
        assert [guilty.code(), waiting.code()] == ["engine_crashed", "engine_crashed"]
        assert {name: lane.strikes.count for name, lane in bench.lanes.items()} == {"gte": 1, "qwen": 0}
        assert bench.engine.shapes.residency.spent == 0
        assert await served(bench, "qwen", 10)
        assert len(bench.workers) == 2


async def test_two_crashes_of_compilations_quarantine_and_admission_clears_no_strike() -> None:
    async with shape_bench() as bench:
        for _ in range(2):
            Call(bench, "gte", 10).task.add_done_callback(lambda task: task.exception())
            await bench.settle()
            bench.worker.die()
            await bench.settle()
        assert bench.lanes["gte"].strikes.quarantined
        assert not bench.lanes["qwen"].strikes.quarantined


async def test_nothing_is_given_back_before_the_process_is_known_to_be_gone() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        bench.worker.keeps_process = True
        bench.worker.die()
        await bench.settle()
        assert bench.lanes["gte"].state is LaneState.UNLOADED
        assert bench.engine.shapes.residency.spent == 22
        load = asyncio.ensure_future(bench.lanes["gte"].load())
        await bench.settle()
        assert len(bench.workers) == 1, "no second worker beside one that may still hold the hardware"
        bench.worker.exited.set()
        await bench.settle()
        assert bench.engine.shapes.residency.spent == 0
        await load
        assert len(bench.workers) == 2


async def test_a_shape_that_is_not_given_up_ends_the_worker() -> None:
    async with shape_bench(Limits(executables=30)) as bench:
        await served(bench, "gte", 10)
        call = Call(bench, "gte", 200)
        await bench.settle()
        assert asked(bench) == ("ANE_EVICT_SHAPE", 128)
        bench.worker.refuse()
        await bench.settle()
        assert call.code() == "engine_crashed"
        assert bench.lanes["gte"].strikes.count == 0
        assert bench.engine.shapes.residency.spent == 0


async def test_unloading_one_model_leaves_the_others_shapes_and_the_last_ends_the_worker() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        await served(bench, "qwen", 10)
        await bench.lanes["gte"].unload()
        assert not bench.worker.fault
        assert [row["lane_id"] for row in bench.engine.to_wire()["shapes"]] == ["qwen"]
        await bench.lanes["qwen"].unload()
        assert bench.worker.exited.is_set()
        await bench.settle()
        assert bench.engine.to_wire()["worker_pid"] is None


async def test_unloading_waits_for_a_compilation_nobody_waits_for() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        call.task.cancel()
        await bench.settle()
        unload = asyncio.ensure_future(bench.lanes["gte"].unload())
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        await step(bench)
        await unload


# --- shape_compiling -----------------------------------------------------------------------------------------------


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
        await step(bench)
        assert asked(bench)[0] == "EMBED_BATCH"
        newcomer = Call(bench, "gte", 12)
        await bench.settle()
        assert await late(bench, third) == "shape_compiling 256"
        bench.now += 1
        assert await late(bench, newcomer) is None
        await step(bench)
        await step(bench)
        await compiled.task
        await waiting.task


async def test_a_request_that_computes_is_late_and_not_compiling() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        bench.now += 10
        await step(bench)
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
        await step(bench)
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
        await step(bench)
        await step(bench)
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
