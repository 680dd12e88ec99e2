"""A hundred lives of a model leave nothing behind: no memory of the device, no handle, no memory of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vulkan_device")]
CYCLES = 100
#: Pages the allocator keeps; a leak of one arena would be 30 times this.
ALLOWED_GROWTH_MB = 3


def test_a_hundred_cycles_grow_nothing() -> None:
    command = [sys.executable, str(Path(__file__).with_name("vulkan_cycles.py")), str(CYCLES)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    facts = json.loads(ran.stdout)
    assert {kind: count for kind, count in facts["handles"].items() if count} == {}
    assert facts["allocated"][0] == facts["allocated"][1]
    assert facts["rss_mb"][1] - facts["rss_mb"][0] <= ALLOWED_GROWTH_MB, facts
