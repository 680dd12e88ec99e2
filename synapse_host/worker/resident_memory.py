"""How much memory this process holds, for PONG."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_MEBIBYTE = 1024 * 1024


def resident_mebibytes() -> int:
    """Resident memory in MiB, rounded up: of now on Linux, the highest so far elsewhere."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    else:
        highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        used = highest if sys.platform == "darwin" else highest * 1024
    return -(-used // _MEBIBYTE)
