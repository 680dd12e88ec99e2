"""Workers killed again and again leave nothing behind in the host, and the next request is served each time."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.supervision.worker_process import WorkerProcess
from synapse_host.testing.crashes.crash_cycles import crash_cycles, slope

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what a process holds from /proc"),
]

#: Ten thousand with ``make soak``; the first cycles fill caches.
CYCLES, EVERY, WARM_UP = 1_000, 50, 4
#: Objects and KiB that a cycle may add, far below what a leaked worker holds. The noise is of the allocator and of the
#: event loop, which keeps up to a hundred cancelled timers before it throws them all away.
MOST_OBJECTS, MOST_KIB = 0.5, 2


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_killed_worker_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The test framework keeps every record of the log.
    monkeypatch.setattr(logging.getLogger("synapse_host.supervision.worker"), "disabled", True)
    settled = (await crash_cycles(tmp_path, CYCLES, every=EVERY))[WARM_UP:]
    plain = {replace(held, objects=0, resident_kib=0) for held in settled}
    objects, kib = (slope([getattr(held, name) for held in settled]) / EVERY for name in ("objects", "resident_kib"))
    print(f"{CYCLES} cycles; per cycle {objects:.2f} objects, {kib:.2f} KiB; {settled[-1]}")
    assert len(plain) == 1, settled
    assert objects < MOST_OBJECTS
    assert kib < MOST_KIB


async def test_a_descriptor_that_is_not_closed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, kept = WorkerProcess.end, []

    async def leak(self: WorkerProcess, *, own_end: bool) -> None:
        kept.append(os.dup(0))
        await end(self, own_end=own_end)

    monkeypatch.setattr(WorkerProcess, "end", leak)
    try:
        seen = await crash_cycles(tmp_path, 3, every=1)
    finally:
        for descriptor in kept:
            os.close(descriptor)
    assert slope([held.descriptors for held in seen]) == 1
