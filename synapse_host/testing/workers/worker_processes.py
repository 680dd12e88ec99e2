"""The workers of a host that is not our own process, found in /proc."""

from __future__ import annotations

from pathlib import Path

from synapse_host.testing.process_watch import is_running

#: What the command line of every worker holds, and that of a probe child does not.
_MODULE = "synapse_host.worker"


def worker_pids(host: int) -> list[int]:
    """The running workers among the children of process ``host``, oldest first."""
    children: list[int] = []
    for task in Path(f"/proc/{host}/task").iterdir():
        children += map(int, (task / "children").read_text().split())
    return sorted(pid for pid in children if is_running(pid) and _MODULE in _arguments(pid))


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []
