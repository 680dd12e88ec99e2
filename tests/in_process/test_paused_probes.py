"""What nobody's request asked for, in a pause: what a probe has begun ends, and nothing more of it is begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synapse_host.certification import probe as probe_module
from synapse_host.certification.lane_rows import lane_vectors
from synapse_host.certification.placement import placement_of
from synapse_host.certification.worker_runs import vectors_of
from synapse_host.errors import SynapseError
from synapse_host.host_probes import HostProbes
from synapse_host.settings import load_settings
from synapse_host.supervision.worker import Worker
from synapse_host.testing.shape_calls import Call, asked, served, stepped
from synapse_host.testing.shape_worker import ShapeBench, shape_bench, shaped_model

pytestmark = pytest.mark.anyio


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


def refused(task: asyncio.Task[Any]) -> tuple[str, str]:
    """The code and the lane a piece of work was refused with."""
    error = task.exception()
    assert isinstance(error, SynapseError)
    return error.code, str((error.details or {}).get("lane_id"))


async def freed(bench: ShapeBench) -> None:
    """The pause came to its end, with what it promises."""
    await bench.settle()
    assert bench.control.status()["phase"] == "paused"
    assert bench.worker.exited.is_set()
    assert not bench.lock.held


async def test_a_probe_of_placements_compiles_nothing_more_and_the_lock_stays_until_what_it_began_is_over() -> None:
    async with shape_bench() as bench:
        lane = bench.lanes["gte"]
        await lane.load()
        with lane.lease({"kind": "job", "job_id": "probe-1"}):
            placement = begun(placement_of(lane))
            await bench.settle()
            assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
            assert bench.control.begin(60_000, "measuring")
            await bench.settle()
            assert (bench.control.status()["phase"], bench.lock.held) == ("draining", True)
            assert [row["state"] for row in bench.engine.to_wire()["shapes"]] == ["compiling"]
            await stepped(bench)
            assert refused(placement) == ("lane_paused", "gte")
        await freed(bench)
        assert bench.engine.shapes.admissions == 1


async def test_rows_of_a_probe_need_no_more_shapes_than_there_were() -> None:
    async with shape_bench() as bench:
        lane = bench.lanes["gte"]
        await served(bench, "gte", 10)
        rows = begun(lane_vectors(lane, [[1] * 10, [2] * 200]))
        await bench.settle()
        assert asked(bench) == ("EMBED_BATCH", 1)
        bench.control.begin(60_000, "measuring")
        await stepped(bench)
        assert refused(rows) == ("lane_paused", "gte")
        await freed(bench)
        assert bench.engine.shapes.admissions == 1
        assert bench.lanes["gte"].strikes.count == 0


async def test_what_had_not_begun_when_the_pause_did_is_not_begun() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        computing = Call(bench, "gte", 10)
        await bench.settle()
        rows = begun(lane_vectors(bench.lanes["gte"], [[2] * 200]))
        await bench.settle()
        bench.control.begin(60_000, "measuring")
        await stepped(bench)
        assert await computing.task
        assert refused(rows) == ("lane_paused", "gte")
        await freed(bench)
        assert [each.shape for each in bench.engine.shapes.compilations] == [128]


async def test_a_compilation_nobody_waits_for_any_more_is_not_begun_either() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        computing = Call(bench, "gte", 10)
        gone = Call(bench, "gte", 200)
        await bench.settle()
        gone.task.cancel()
        await bench.settle()
        bench.control.begin(60_000, "measuring")
        await stepped(bench)
        assert await computing.task
        await freed(bench)
        assert [each.shape for each in bench.engine.shapes.compilations] == [128]


async def test_a_request_that_was_admitted_has_its_shape_and_who_waits_with_it_too() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        computing = Call(bench, "gte", 10)
        await bench.settle()
        rows, request = begun(lane_vectors(bench.lanes["gte"], [[2] * 200])), Call(bench, "gte", 200)
        await bench.settle()
        bench.control.begin(60_000, "measuring")
        await stepped(bench)
        assert asked(bench) == ("ANE_ADMIT_SHAPE", 256)
        await stepped(bench)
        while not (rows.done() and request.task.done()):
            await stepped(bench)
        assert await computing.task
        assert await request.task
        await freed(bench)


async def test_after_the_pause_a_probe_compiles_again() -> None:
    async with shape_bench() as bench:
        await served(bench, "gte", 10)
        bench.control.begin(60_000, "measuring")
        await bench.settle()
        bench.control.resume()
        await bench.lanes["gte"].load()
        rows = begun(lane_vectors(bench.lanes["gte"], [[2] * 200]))
        await bench.settle()
        while not rows.done():
            await stepped(bench)
        assert await rows


# --- the probe of a host -------------------------------------------------------------------------------------------


def probes(bench: ShapeBench) -> HostProbes:
    async def start(model: Any) -> Worker:
        bench.control.require_lock(model)
        return cast("Worker", await bench.engine.share(model))

    ledger: Any = SimpleNamespace(key=lambda model: ("profile", model.fingerprint))
    return HostProbes(load_settings(), ledger, cast("Any", None), start, bench.control.refuse, "1", 1, lambda: 0)


def measuring(monkeypatch: pytest.MonkeyPatch, steps: Callable[[Any, Any], Coroutine[Any, Any, Any]]) -> None:
    async def probe_lane(lane: Any, profile_hash: str, setting: Any, tell: Any) -> Any:
        return await steps(setting, tell)

    monkeypatch.setattr(probe_module, "probe_lane", probe_lane)


def embedding(*counts: int) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    """A probe that does nothing but embed rows with a model of its own."""

    async def steps(setting: Any, tell: Any) -> Any:
        model = shaped_model("gte-magnifier", 2)
        return await vectors_of(setting.start_worker, model, [[1] * count for count in counts], threads=0)

    return steps


async def test_a_model_of_the_probes_own_is_asked_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, embedding(*[10] * 300))
    async with shape_bench() as bench:
        lane = bench.lanes["gte"]
        await lane.load()
        with lane.lease({"kind": "job", "job_id": "probe-1"}):
            probe = begun(probes(bench).run(lane, lambda step: None))
            await bench.settle()
            assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
            bench.control.begin(60_000, "measuring")
            await bench.settle()
            assert bench.lock.held
            await stepped(bench)
            assert asked(bench)[0] == "EMBED_BATCH", "what it was asked it does"
            await stepped(bench)
            assert refused(probe) == ("lane_paused", "gte")
        await freed(bench)


async def test_a_shape_of_such_a_model_is_not_compiled_and_its_lane_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, embedding(10, 200))
    async with shape_bench() as bench:
        lane = bench.lanes["gte"]
        await served(bench, "gte", 10)
        with lane.lease({"kind": "job", "job_id": "probe-1"}):
            probe = begun(probes(bench).run(lane, lambda step: None))
            await bench.settle()
            await stepped(bench)
            computing = Call(bench, "gte", 10)
            await bench.settle()
            await stepped(bench)
            assert bench.engine.shapes.residency.compiling is not None, "its second shape waits for who computes"
            bench.control.begin(60_000, "measuring")
            await stepped(bench)
            assert await computing.task
            assert refused(probe) == ("lane_paused", "gte")
        await freed(bench)
        assert [each.shape for each in bench.engine.shapes.compilations] == [128, 128]


async def test_a_probe_takes_no_further_step_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    async def two_steps(setting: Any, tell: Any) -> Any:
        tell("reference")
        bench.control.begin(60_000, "measuring")
        tell("lane")

    measuring(monkeypatch, two_steps)
    async with shape_bench() as bench:
        probe = begun(probes(bench).run(bench.lanes["gte"], told.append))
        await bench.settle()
        assert refused(probe) == ("lane_paused", "gte")
        assert told == ["reference"]
