"""kill -9 at every durable step of the model cache: what is wanted stays, what is half never shows."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

TIMES = 5
LEAST_STEPS = 25
#: A killed process loses nothing the kernel has, so memory serves as well as a disk, and its fsync does not wait.
MEMORY = Path("/dev/shm")


def test_no_death_at_any_step_loses_or_spoils_content() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        command = [sys.executable, "-m", "synapse_host.testing.crashes.cache_crashes", directory, str(TIMES)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    deaths = json.loads(ran.stdout.splitlines()[-1])
    print(f"{len(deaths)} steps, {sum(deaths.values())} deaths")
    assert len(deaths) >= LEAST_STEPS
    assert min(deaths.values()) >= TIMES
    operations = {step.partition(":")[0] for step in deaths}
    assert operations == {
        "make",
        "make more",
        "ingest",
        "ingest again",
        "pin",
        "unpin",
        "mark",
        "remove",
        "quarantine",
        "repair",
    }
