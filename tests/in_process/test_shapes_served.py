"""Shapes of the Neural Engine as lanes meet them: compiled when first wanted, shared, dropped, lost with the worker."""

from __future__ import annotations

import asyncio

import pytest

from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.shape_residency import Limits
from synapse_host.testing.shape_calls import Call, asked, served, stepped
from synapse_host.testing.shape_worker import shape_bench
from synapse_host.worker_protocol.messages import Load, Ping

pytestmark = pytest.mark.anyio


async def test_a_shape_is_compiled_when_it_is_first_wanted_and_used_after_that() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 100)
        await bench.settle()
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        assert bench.turns.running == 0, "a compilation holds no permit"
        await stepped(bench)
        assert asked(bench) == ("EMBED_BATCH", 1)
        assert bench.turns.running == 1
        await stepped(bench)
        assert await call.task
        again = Call(bench, "gte", 128)
        await bench.settle()
        assert asked(bench) == ("EMBED_BATCH", 1)
        await stepped(bench)
        await again.task


async def test_rows_of_different_shapes_go_in_groups_of_one_shape_and_come_back_in_order() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 300, 5, 200, 7)
        seen = []
        await bench.settle()
        while not call.task.done():
            seen.append(asked(bench))
            await stepped(bench)
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
        await stepped(bench)
        assert asked(bench) == ("EMBED_BATCH", 1)
        await stepped(bench)
        await second.task
        assert bench.engine.shapes.admissions == 1


async def test_a_compilation_goes_on_when_nobody_waits_for_it_any_more() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        call.task.cancel()
        await bench.settle()
        await stepped(bench)
        assert bench.engine.to_wire()["shapes"] == [
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
        await stepped(bench)
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
        assert bench.engine.shapes.residency.spent == 78
        await stepped(bench)
        await stepped(bench)
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
        await stepped(bench)
        while not (slow.task.done() and quick.task.done()):
            await stepped(bench)
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


async def test_a_refused_shape_takes_its_room_until_the_worker_says_that_it_is_not_there() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        (held,) = bench.worker.shapes.values()
        held.add(128)
        bench.worker.refuse("inference_failed")
        await bench.settle()
        assert asked(bench) == ("ANE_EVICT_SHAPE", 128)
        assert (bench.engine.shapes.residency.spent, call.task.done()) == (22, False)
        await stepped(bench)
        assert (bench.engine.shapes.residency.spent, call.code()) == (0, "engine_crashed")
        assert bench.worker.alive


async def test_a_worker_that_keeps_a_shape_it_refused_is_ended() -> None:
    async with shape_bench() as bench:
        call = Call(bench, "gte", 10)
        await bench.settle()
        (held,) = bench.worker.shapes.values()
        held.add(128)
        bench.worker.refuse("inference_failed")
        await bench.settle()
        bench.worker.keeps_process = True
        bench.worker.refuse("inference_failed")
        await bench.settle()
        assert call.code() == "engine_crashed"
        assert bench.engine.shapes.residency.spent == 22, "the process is not known to be gone"
        bench.worker.exited.set()
        await bench.settle()
        assert bench.engine.shapes.residency.spent == 0
        assert bench.lanes["gte"].strikes.count == 0


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
        await stepped(bench)
        await unload


async def test_a_share_that_is_stopped_with_its_model_leaves_the_worker_to_the_others() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        share = await bench.engine.share(bench.lanes["qwen"].model)
        await share.request(Load("load-1", "/m", "d", "f", {"max_tokens": "28"}))
        assert len(bench.worker.shapes) == 2
        await share.stop()
        assert (len(bench.worker.shapes), bench.worker.alive) == (1, True)
        assert await served(bench, "gte", 10)
        assert len(bench.workers) == 1


async def test_a_worker_that_ends_over_a_look_at_its_health_failed_all_its_models() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        await served(bench, "qwen", 10)
        bench.worker.submit(bench.worker.exchange(Ping("p")))
        bench.worker.die("silence")
        await bench.settle()
        assert {name: lane.strikes.count for name, lane in bench.lanes.items()} == {"gte": 1, "qwen": 1}


async def test_closing_a_lane_whose_process_does_not_end_goes_on() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        bench.worker.keeps_process = True
        await bench.lanes["gte"].close()
        with pytest.raises(OSError, match="not known to have ended"):
            bench.lock.release()
