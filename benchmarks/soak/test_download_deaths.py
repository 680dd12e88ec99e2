"""kill -9 at every single durable step of downloading, repairing, removing and collecting, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(3600)
def test_a_death_at_any_single_step_leaves_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "synapse_host.testing.crashes.download_crashes", str(tmp_path), "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    deaths = json.loads(ran.stdout.splitlines()[-1])
    print(f"{len(deaths)} kinds of steps, {sum(deaths.values())} deaths")
    assert sum(deaths.values()) >= 300
