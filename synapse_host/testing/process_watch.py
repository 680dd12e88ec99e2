"""Whether a process that is not our child is gone; a zombie counts as gone, for it runs nothing any more."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

#: Seconds between two looks where the system cannot tell us of the end.
_LOOK_INTERVAL_S = 0.02


def wait_until_gone(pid: int, deadline_s: float = 20.0) -> bool:
    """Wait until ``pid`` has ended; False when it still runs after ``deadline_s`` seconds."""
    if hasattr(os, "pidfd_open"):
        return _wait_for_descriptor(pid, deadline_s)
    end = time.monotonic() + deadline_s
    while is_running(pid):
        if time.monotonic() > end:
            return False
        time.sleep(_LOOK_INTERVAL_S)
    return True


def is_running(pid: int) -> bool:
    """Whether ``pid`` exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        # The state is the first field after the command's closing parenthesis.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return not Path("/proc/self/stat").exists()


def _wait_for_descriptor(pid: int, deadline_s: float) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], deadline_s)[0])
    finally:
        os.close(descriptor)
