"""Ten thousand workers killed, and what the host holds after each thousand."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import pytest

from synapse_host.testing.crashes.crash_cycles import crash_cycles, slope

CYCLES, EVERY, WARM_UP = 10_000, 500, 2
#: A leaked descriptor, task or buffer of one worker weighs more than this each cycle.
MOST_OBJECTS, MOST_KIB = 0.05, 0.5


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads what a process holds from /proc")
def test_ten_thousand_crashes(tmp_path: Path) -> None:
    logging.getLogger("synapse_host.supervision.worker").disabled = True
    try:
        seen = anyio.run(lambda: crash_cycles(tmp_path, CYCLES, every=EVERY, looked=lambda *look: print(*look)))
    finally:
        logging.getLogger("synapse_host.supervision.worker").disabled = False
    settled = seen[WARM_UP:]
    grown = {
        name: slope([getattr(held, name) for held in settled]) / EVERY
        for name in ("descriptors", "children", "tasks", "objects", "resident_kib")
    }
    print(f"{CYCLES} cycles, growth per cycle: {grown}")
    assert [grown[name] for name in ("descriptors", "children", "tasks")] == [0, 0, 0]
    assert grown["objects"] < MOST_OBJECTS
    assert grown["resident_kib"] < MOST_KIB
