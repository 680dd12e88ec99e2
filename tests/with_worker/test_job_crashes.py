"""kill -9 at every kind of writing step of durable jobs: what was committed is there, and nothing is done twice."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from synapse_host.testing.crashes.job_crashes import OFTEN

TIMES = 5
LEAST_KINDS = 20
#: A killed process loses nothing the kernel has, so memory serves as well as a disk, and its fsync does not wait.
MEMORY = Path("/dev/shm")


def test_no_death_loses_or_repeats_what_was_committed() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        command = [sys.executable, "-m", "synapse_host.testing.crashes.job_crashes", directory, str(TIMES)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    deaths = json.loads(ran.stdout.splitlines()[-1])
    print(f"{len(deaths)} kinds of steps, {sum(deaths.values())} deaths")
    assert len(deaths) >= LEAST_KINDS
    assert min(deaths.values()) >= TIMES
    assert {kind.partition(":")[0] for kind in deaths} == set(OFTEN)
