"""A pause on a host that has no model of the Neural Engine: nothing waits for hardware that nobody here needs."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("resumed", [True, False])
async def test_it_ends_without_the_lock_that_another_host_has(tmp_path: Path, resumed: bool) -> None:
    path = tmp_path / "hardware.lock"
    ours, others = FileLock(path), FileLock(path)
    assert others.acquire()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            control = PauseControl(LaneTable(), ours, tasks, now_ms=lambda: 0, clock=time.monotonic)
            assert control.begin(60_000 if resumed else 1, "measuring")
            if resumed:
                while not control.state.hardware_free:
                    await anyio.lowlevel.checkpoint()
                control.resume()
            while control.state.active:
                await anyio.lowlevel.checkpoint()
    assert ours.descriptor is None
    others.release()
