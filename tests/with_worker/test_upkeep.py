"""What a lane does for its worker between requests: its pulse, and its replacement when it has grown too large."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import anyio
import pytest

from synapse_host.admission.gate import Budget
from synapse_host.lanes import lane as lane_module
from synapse_host.lanes.health_refresh import HealthRefresh
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.testing.gate import Gate
from synapse_host.testing.workers.running_worker import embed, load, misbehaving_spec, running, stub_spec
from synapse_host.testing.workers.stub_lane import stub_lane, until

pytestmark = pytest.mark.anyio
ROW = [1, 2, 3]


# --- pulse ---------------------------------------------------------------------------------------------------------


async def test_a_pulse_is_no_request_and_clears_no_strike(tmp_path: Path) -> None:
    now = 100.0
    async with stub_lane(stub_spec(tmp_path), clock=lambda: now) as stub:
        await stub.lane.load()
        stub.lane.strikes.fault()
        assert stub.lane.health.pulse is None
        await stub.pulse()
        row = stub.lane.health.to_wire(now + 3)
        assert (row["rss_mib"], row["last_ping_age_ms"], row["worker_pid"]) == (1, 3000, stub.workers[0].pid)
        assert (row["strikes"], row["rows_computed"]) == (1, 0)
        assert stub.lane.turns.free


async def test_requests_go_before_a_ping_that_waits(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with running(misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as worker:
        ref = await load(worker)
        order: list[str] = []

        async def ask(name: str) -> None:
            await embed(worker, ref, ROW, req_id=name)
            order.append(name)

        async def ping() -> None:
            await worker.ping("ping-1")
            order.append("ping")

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask, "first")
            await gate.reached()
            assert not worker.idle
            callers.start_soon(ping)
            await anyio.wait_all_tasks_blocked()
            callers.start_soon(ask, "second")
            await anyio.wait_all_tasks_blocked()
            gate.open()
        assert order == ["first", "second", "ping"]
        assert worker.idle


async def test_a_busy_worker_is_asked_once_and_its_row_keeps_the_last_answer(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with stub_lane(misbehaving_spec(tmp_path, "wait_at_gate", env=gate.env)) as stub:
        await stub.lane.load()
        await stub.pulse()
        first = stub.lane.health.pulse
        async with anyio.create_task_group() as callers:
            callers.start_soon(stub.embed, ROW)
            await gate.reached()
            for _ in range(3):
                stub.lane.refresh_health()
            await anyio.wait_all_tasks_blocked()
            assert stub.lane.health.pulse is first
            assert len(stub.workers[0]._conversation._spare) == 1
            gate.open()
        await stub.pulse()
        assert stub.lane.health.pulse is not first


async def test_a_ping_that_is_not_answered_is_silence_and_one_strike(tmp_path: Path) -> None:
    silent = misbehaving_spec(tmp_path, "silence", on="PING", silence=SilenceWindows(inference_s=0.2))
    async with stub_lane(silent, stub_spec(tmp_path)) as stub:
        await stub.lane.load()
        stub.lane.refresh_health()
        await until(lambda: stub.lane.state is LaneState.UNLOADED)
        (worker,) = stub.workers
        assert worker.fault is not None
        assert worker.fault.reason == "silence"
        assert stub.lane.strikes.count == 1
        await stub.embed(ROW)
        assert (stub.lane.strikes.count, len(stub.workers)) == (0, 2)


async def test_a_refused_ping_leaves_the_worker_serving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "refuses", on="PING")) as stub:
        await stub.lane.load()
        stub.lane.refresh_health()
        await anyio.wait_all_tasks_blocked()
        await until(lambda: "refused PING" in caplog.text)
        assert stub.lane.health.pulse is None
        await stub.pulse()
        assert (stub.lane.strikes.count, len(stub.workers)) == (0, 1)


async def test_a_new_worker_does_not_show_the_figures_of_the_last(tmp_path: Path) -> None:
    async with stub_lane(stub_spec(tmp_path)) as stub:
        await stub.lane.load()
        await stub.pulse()
        await stub.lane.unload()
        assert stub.lane.health.pulse is None
        assert stub.lane.health.worker_pid is None
        await stub.lane.load()
        assert stub.lane.health.pulse is None


async def test_the_background_task_asks_when_woken_and_again_after_its_interval(tmp_path: Path) -> None:
    lanes = LaneTable()
    refresh = HealthRefresh(lanes, interval_s=3600)
    async with (
        stub_lane(stub_spec(tmp_path), loaded=refresh.wake) as stub,
        anyio.create_task_group() as background,
    ):
        lanes.put(stub.lane)
        background.start_soon(refresh.run)
        await anyio.wait_all_tasks_blocked()
        assert stub.lane.health.pulse is None
        await stub.lane.load()
        await until(lambda: stub.lane.health.pulse)
        background.cancel_scope.cancel()
        again = HealthRefresh(lanes, interval_s=0.01)
        async with anyio.create_task_group() as other:
            other.start_soon(again.run)
            for _ in range(3):
                last = stub.lane.health.pulse
                await until(lambda last=last: stub.lane.health.pulse is not last)
            other.cancel_scope.cancel()


# --- recycling -----------------------------------------------------------------------------------------------------


async def test_a_worker_above_the_limit_is_replaced_once_idle_without_a_strike(tmp_path: Path) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows"), recycle_rss_mib=150) as stub:
        first = await stub.embed(ROW)
        await stub.pulse()
        assert (stub.lane.health.pulse and stub.lane.health.pulse.rss_mib, len(stub.workers)) == (101, 1)
        with stub.lane.lease():
            await stub.lane.embed([ROW], ["0"])
            await stub.pulse()
            assert (stub.lane.state, stub.lane.health.pulse and stub.lane.health.pulse.rss_mib) == ("ready", 201)
        # The lane was held until here; now it is not.
        assert stub.lane.state is LaneState.UNLOADING
        assert await stub.embed(ROW) == first
        assert len(stub.workers) == 2
        assert stub.workers[0].fault is not None
        assert stub.workers[0].fault.reason == "stopped"
        assert (stub.lane.health.recycled, stub.lane.health.state) == (1, "ready")


async def test_a_worker_that_still_computes_for_a_caller_gone_away_is_not_replaced(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    async with stub_lane(misbehaving_spec(tmp_path, "grows", env=gate.env), recycle_rss_mib=50) as stub:
        await stub.lane.load()
        await stub.pulse()
        with stub.lane.lease(), anyio.CancelScope() as deadline:
            await stub.lane.embed([ROW], ["0"])
            await stub.pulse()
            async with anyio.create_task_group() as callers:
                callers.start_soon(stub.lane.embed, [ROW], ["0"])
                await gate.reached()
                deadline.cancel()
        assert (stub.lane.state, stub.worker.idle) == (LaneState.READY, False)
        gate.open()
        await until(lambda: stub.lane.rows_computed == 2)
        assert stub.lane.health.recycled == 0
        stub.lane.refresh_health()
        await until(lambda: stub.lane.health.recycled == 1)


async def test_recycling_neither_adds_nor_clears_a_strike(tmp_path: Path) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows"), recycle_rss_mib=50) as stub:
        await stub.lane.load()
        await stub.pulse()
        await stub.embed(ROW)
        stub.lane.strikes.fault()
        stub.lane.refresh_health()
        await until(lambda: stub.lane.state is LaneState.UNLOADING)
        await until(lambda: stub.lane.state is LaneState.READY)
        assert (stub.lane.strikes.count, stub.lane.health.recycled) == (1, 1)


async def test_a_request_that_comes_while_it_is_replaced_waits_past_the_cap_of_a_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "LOAD_WAIT_MS", 1)
    gate = Gate(tmp_path / "gate")
    async with stub_lane(misbehaving_spec(tmp_path, "grows"), recycle_rss_mib=50) as stub:
        await stub.lane.load()
        await stub.pulse()
        await stub.embed(ROW)
        stub.specs[:] = [misbehaving_spec(tmp_path, "wait_at_gate", on="LOAD", env=gate.env)]
        stub.lane.refresh_health()
        await until(lambda: stub.lane.state is LaneState.LOADING)

        async def ask() -> None:
            with stub.lane.lease():
                await stub.lane.ensure_ready(Budget(time.monotonic() + 3600, 3_600_000, 0))
                await stub.lane.embed([ROW], ["0"])

        async with anyio.create_task_group() as callers:
            callers.start_soon(ask)
            await gate.reached()
            await anyio.sleep(0.01)  # past the cap
            gate.open()
        assert stub.lane.health.recycled == 1


async def test_an_unload_waits_for_the_replacement(tmp_path: Path) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows"), recycle_rss_mib=50) as stub:
        await stub.lane.load()
        await stub.pulse()
        await stub.embed(ROW)
        stub.lane.refresh_health()
        await until(lambda: stub.lane.state is LaneState.UNLOADING)
        await stub.lane.unload()
        assert (stub.lane.state, len(stub.workers)) == (LaneState.UNLOADED, 2)


async def test_a_worker_that_is_above_the_limit_when_new_is_left_alone_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows", on="LOAD"), recycle_rss_mib=50) as stub:
        await stub.lane.load()
        for _ in range(3):
            await stub.pulse()
        assert (stub.lane.state, len(stub.workers)) == (LaneState.READY, 1)
        assert [record.levelno for record in caplog.records if "recycle_rss_mib" in record.message] == [logging.WARNING]


async def test_a_worker_first_seen_when_it_had_grown_is_replaced_all_the_same(tmp_path: Path) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows"), recycle_rss_mib=150) as stub:
        for _ in range(2):
            await stub.embed(ROW)
        stub.lane.refresh_health()
        await until(lambda: stub.lane.health.recycled == 1)


async def test_without_a_limit_a_worker_grows_as_it_likes(tmp_path: Path) -> None:
    async with stub_lane(misbehaving_spec(tmp_path, "grows")) as stub:
        for _ in range(3):
            await stub.embed(ROW)
            await stub.pulse()
        assert len(stub.workers) == 1
