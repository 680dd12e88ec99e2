"""What a job of many items holds in memory does not grow with their number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FEW, MANY = 8_192, 81_920
#: A hundred bytes kept of each item would pass this.
MOST_GROWTH_MIB = 8


def load(folder: Path, items: int) -> dict[str, Any]:
    """The figures of a run in a process of its own."""
    folder.mkdir()
    command = [sys.executable, "-m", "synapse_host.testing.job_load", str(folder), str(items)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


@pytest.mark.slow
def test_memory_does_not_grow_with_the_items(tmp_path: Path) -> None:
    few, many = load(tmp_path / "few", FEW), load(tmp_path / "many", MANY)
    print(few, many, sep="\n")
    assert many["peak_rss_mib"] <= few["peak_rss_mib"] + MOST_GROWTH_MIB
