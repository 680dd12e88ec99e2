"""kill -9 at every kind of durable step of downloading: after the next start nothing is missing, half there or left."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from synapse_host.testing.crashes.download_crashes import OFTEN

TIMES = 5
LEAST_KINDS = 25
#: A killed process loses nothing the kernel has, so memory serves as well as a disk, and its fsync does not wait.
MEMORY = Path("/dev/shm")


def test_no_death_while_downloading_leaves_anything_in_disorder() -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        command = [sys.executable, "-m", "synapse_host.testing.crashes.download_crashes", directory, str(TIMES)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    deaths = json.loads(ran.stdout.splitlines()[-1])
    often = {kind: count for kind, count in deaths.items() if kind.partition(":")[0] in OFTEN}
    print(f"{len(deaths)} kinds of steps, {sum(deaths.values())} deaths")
    assert len(often) >= LEAST_KINDS
    assert min(often.values()) >= TIMES
    assert {kind.partition(":")[0] for kind in often} == set(OFTEN)
