"""The share of operations on the Neural Engine: asked for shape by shape, and the shape at fault named."""

from __future__ import annotations

import asyncio

import pytest

from synapse_host.certification.placement import Placement, placement_of
from synapse_host.testing.shape_calls import served, stepped
from synapse_host.testing.shape_worker import ShapeBench, shape_bench

pytestmark = pytest.mark.anyio


async def measured(bench: ShapeBench, lane: str) -> Placement:
    await bench.lanes[lane].load()
    measuring = asyncio.ensure_future(placement_of(bench.lanes[lane]))
    await bench.settle()
    while not measuring.done():
        await stepped(bench)
    return await measuring


async def test_every_shape_is_compiled_and_asked_for_and_the_budget_is_kept() -> None:
    async with shape_bench() as bench:
        placement = await measured(bench, "qwen")
        assert [shape for shape, _ in placement.shares] == [128, 256, 512, 1024, 2048, 4096, 8192]
        assert placement.missed(0.9) == []
        assert placement.lowest == 1.0
        assert bench.engine.shapes.admissions >= 7
        assert bench.engine.shapes.residency.spent <= 100


async def test_the_first_shape_below_the_floor_is_named_with_its_share() -> None:
    async with shape_bench() as bench:
        await bench.lanes["gte"].load()
        bench.worker.share_at = {512: 0.42, 2048: 0.3}
        placement = await measured(bench, "gte")
        assert placement.missed(0.9) == ["Neural Engine share at shape 512 is 0.4200, below 0.9"]
        assert placement.lowest == 0.3
        assert placement.to_evidence()["shares"][2] == {"shape": 512, "share": 0.42}


async def test_another_models_share_is_not_ones_own() -> None:
    async with shape_bench() as bench:
        await bench.lanes["gte"].load()
        bench.worker.share_at = {128: 0.5}
        await served(bench, "gte", 10)
        bench.worker.share_at = {}
        share = bench.lanes["gte"].serving.worker
        assert (await share.ping("p")).placement_share == 1.0
        await bench.lanes["qwen"].load()
        assert (await bench.lanes["qwen"].serving.worker.ping("p")).placement_share is None


def test_a_worker_that_tells_no_share_is_not_certified() -> None:
    (missed,) = Placement(((None, None),)).missed(0.9)
    assert "tells no share" in missed
    assert Placement(((None, 0.95),)).missed(0.9) == []
    assert Placement(((None, 0.5),)).missed(0.9) == ["Neural Engine share is 0.5000, below 0.9"]
