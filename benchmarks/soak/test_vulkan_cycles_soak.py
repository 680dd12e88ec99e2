"""Two thousand loads and unloads on the Vulkan backend, and what they leave behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "plugins" / "vulkan" / "tests" / "vulkan_cycles.py"
CYCLES = 2000
#: Small bookkeeping of driver and binding; one kept descriptor pool a cycle would pass it.
ALLOWED_GROWTH_MB = 12


def test_two_thousand_cycles_grow_nothing() -> None:
    ran = subprocess.run([sys.executable, str(PROGRAM), str(CYCLES)], capture_output=True, text=True, check=True)
    facts = json.loads(ran.stdout)
    print(f"vulkan, {CYCLES} loads and unloads: {facts}")
    assert not any(facts["handles"].values())
    assert facts["allocated"][0] == facts["allocated"][1]
    assert facts["rss_mb"][1] - facts["rss_mb"][0] <= ALLOWED_GROWTH_MB
