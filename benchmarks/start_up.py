"""How soon a host listens, and what it weighs before a model is loaded."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.machine import resident_mib
from benchmarks.result import Bar, Result, Spread
from synapse_host.testing.running_host import RunningHost

#: The issue's bars.
MOST_READY_S = 0.5
MOST_RESIDENT_MIB = 80.0


def measure(starts: int) -> Result:
    """Start a host in a new home, again and again.

    One more start before the others compiles the sources into a folder of the benchmark's, as installing would, and
    reads the files from disk.
    """
    ready, resident = [], []
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as bytecode:
        for number in range(starts + 1):
            seconds, mebibytes = _start(bytecode)
            if number:
                ready.append(seconds)
                resident.append(mebibytes)
    times, sizes = Spread.of(ready), Spread.of(resident)
    rows = [("from spawn to listening, s", times.shown(3)), ("resident when listening, MiB", sizes.shown(1))]
    figures = {
        "starts": starts,
        "ready_s": times.median,
        "ready_low_s": times.samples[0],
        "ready_high_s": times.samples[-1],
        "resident_mib": sizes.median,
    }
    bars = (
        Bar("host ready", times.median, MOST_READY_S, "at most", " s"),
        Bar("host resident before a model loads", sizes.median, MOST_RESIDENT_MIB, "at most", " MiB"),
    )
    return Result("start", f"{starts} starts", ("", "median and range"), rows, figures, bars)


def _start(bytecode: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="synapse-bench-") as home:
        host = RunningHost(Path(home), {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""})
        started = time.perf_counter()
        with host:
            return time.perf_counter() - started, resident_mib(host.process.pid)
