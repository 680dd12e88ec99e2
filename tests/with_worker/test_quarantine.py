"""Strikes of a real lane: what clears them, what does not, and how a quarantine ends under both policies."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import EngineCrashed, ProbeRequired
from synapse_host.lanes.strikes import CATALOG, FREE_FORM, QuarantinePolicy
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.testing.gate import Gate
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.testing.workers.running_worker import PATIENCE_S, misbehaving_spec, stub_spec
from synapse_host.testing.workers.stub_lane import StubLane, stub_lane, until

pytestmark = pytest.mark.anyio
ROW = [1, 2, 3]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def die(stub: StubLane) -> None:
    """Load if need be, and kill the worker at rest."""
    await stub.lane.load()
    os.kill(stub.worker.pid, signal.SIGKILL)
    await stub.settled()


async def test_loading_pinging_and_unloading_clear_no_strike(tmp_path: Path) -> None:
    async with stub_lane(stub_spec(tmp_path)) as stub:
        await die(stub)
        await stub.lane.load()
        await stub.pulse()
        await stub.lane.unload()
        await stub.lane.load()
        assert stub.lane.strikes.count == 1
        await stub.embed(ROW)
        assert stub.lane.strikes.count == 0


async def test_work_that_ends_after_its_caller_gave_up_clears_strikes(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with stub_lane(stub_spec(tmp_path), misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as stub:
        await die(stub)
        with anyio.CancelScope() as deadline:
            async with anyio.create_task_group() as callers:
                callers.start_soon(stub.embed, ROW)
                await gate.reached()
                deadline.cancel()
        assert (stub.lane.strikes.count, stub.worker.alive) == (1, True)
        gate.open()
        await until(lambda: stub.lane.strikes.count == 0)
        assert stub.lane.rows_computed == 1


@pytest.mark.parametrize("policy", [FREE_FORM, CATALOG])
async def test_two_deaths_quarantine_until_unloaded(tmp_path: Path, policy: QuarantinePolicy) -> None:
    async with stub_lane(stub_spec(tmp_path), clock=Clock(), quarantine=policy) as stub:
        await die(stub)
        await die(stub)
        with pytest.raises(ProbeRequired if policy is FREE_FORM else EngineCrashed) as refused:
            stub.lane.refuse_quarantined()
        assert refused.value.details == {"lane_id": "stub", "quarantined": True}
        await stub.lane.unload()
        stub.lane.refuse_quarantined()
        await stub.embed(ROW)
        assert (stub.lane.strikes.count, len(stub.workers)) == (0, 3)


async def test_a_catalog_lane_is_tried_again_after_ten_minutes_without_strikes(tmp_path: Path) -> None:
    clock = Clock()
    async with stub_lane(stub_spec(tmp_path), clock=clock, quarantine=CATALOG) as stub:
        await die(stub)
        await die(stub)
        clock.now += 480
        with pytest.raises(EngineCrashed) as refused:
            stub.lane.refuse_quarantined()
        assert (refused.value.error_class, refused.value.retry_after_ms) == ("transient", 120_000)
        assert stub.lane.health.to_wire(clock.now)["quarantined"]
        clock.now += 120
        stub.lane.refuse_quarantined()
        await die(stub)
        assert stub.lane.strikes.count == 1
        await stub.embed(ROW)
        assert (stub.lane.strikes.count, len(stub.workers)) == (0, 4)


async def test_other_kernels_are_no_strike(tmp_path: Path) -> None:
    swapped = misbehaving_spec(tmp_path, "other_kernels", expected_manifest="aa", expected_kernel="r1")
    async with stub_lane(swapped) as stub:
        for _ in range(3):
            with pytest.raises(EngineCrashed, match="kernel_revision is 'r9'"):
                await stub.embed(ROW)
        assert (stub.lane.strikes.count, stub.workers) == (0, [])


async def test_a_frozen_worker_keeps_its_device_no_longer_than_its_window(tmp_path: Path) -> None:
    """Only SIGKILL reaches it; whoever waits for the device goes on, on a fresh worker."""
    brief = replace(stub_spec(tmp_path), silence=SilenceWindows(PATIENCE_S, 0.3))
    async with stub_lane(brief, stub_spec(tmp_path)) as stub:
        # Nothing is computed before: an answer within its window is not what this is about.
        await stub.lane.load()
        frozen = stub.worker.pid
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(EngineCrashed, match=r"no completed work for 0\.3 s"):
            await stub.embed(ROW)
        assert (stub.lane.turns.free, stub.lane.strikes.count) == (True, 1)
        assert wait_until_gone(frozen, PATIENCE_S)
        await stub.settled()
        await stub.embed(ROW)
        assert (stub.worker.pid != frozen, stub.lane.strikes.count) == (True, 0)
