"""Waits for a model to load that a compilation for another model holds up, on the one worker of both."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from synapse_host.admission.gate import Budget
from synapse_host.errors import SynapseError
from synapse_host.lanes import lane as lane_module
from synapse_host.testing.shape_calls import Call, asked, stepped
from synapse_host.testing.shape_worker import ShapeBench, shape_bench
from synapse_host.testing.workers.stub_lane import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest wait for a load, in milliseconds, so that a test need not wait for five seconds."""
    monkeypatch.setattr(lane_module, "LOAD_WAIT_MS", 1)


async def behind_a_compilation(bench: ShapeBench, deadline_s: float) -> asyncio.Task[None]:
    """A request for a cold model, on a worker that compiles for another; its clock moves with the real one."""
    compiled = Call(bench, "gte", 10)
    await bench.settle()
    assert asked(bench) == ("ANE_ADMIT_SHAPE", 128)
    compiled.task.add_done_callback(lambda task: task.exception())
    lane = bench.lanes["qwen"]
    lane._clock = time.monotonic
    bench.now = time.monotonic()
    bench.engine.shapes.history.ended(bench.now)
    bench.engine.shapes.history.began(128, bench.now)
    budget = Budget(time.monotonic() + deadline_s, round(deadline_s * 1000), 1000)
    return asyncio.ensure_future(lane.ensure_ready(budget))


def code(task: asyncio.Task[Any]) -> str:
    error = task.exception()
    assert isinstance(error, SynapseError)
    return error.code


async def test_a_compilation_in_the_way_is_waited_for_past_the_time_for_loading() -> None:
    async with shape_bench() as bench:
        asks: list[float] = []
        compiled_since = bench.engine.shapes.compiled_since

        def counted(since: float) -> int | None:
            asks.append(since)
            return compiled_since(since)

        bench.engine.shapes.compiled_since = counted  # type: ignore[method-assign]
        waiting = await behind_a_compilation(bench, 60.0)
        await until(lambda: len(asks) > 3)
        assert not waiting.done(), "model_loading is never for a shape that is compiled"
        await stepped(bench)
        while not waiting.done():
            await stepped(bench)
        await waiting


async def test_a_deadline_that_passes_behind_it_is_shape_compiling() -> None:
    async with shape_bench() as bench:
        waiting = await behind_a_compilation(bench, 0.02)
        await until(waiting.done)
        assert code(waiting) == "shape_compiling"
        error: Any = waiting.exception()
        assert error.details == {"lane_id": "qwen", "shape": 128}


@pytest.mark.parametrize(("deadline_s", "told"), [(60.0, "model_loading"), (0.0, "deadline_exceeded")])
async def test_a_load_that_nothing_is_in_the_way_of_has_its_own_words(deadline_s: float, told: str) -> None:
    async with shape_bench() as bench:
        waiting = await behind_a_compilation(bench, deadline_s)
        bench.engine.shapes.history.ended(bench.now)
        await until(waiting.done)
        assert code(waiting) == told
