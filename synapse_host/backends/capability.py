"""Which backends can run on this machine: the host's question, answered by bounded children and a cache.

The host imports no plugin. Each installed backend is described and probed in a child of its own, so a broken one is a
row with a reason and hides no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread

from synapse_host.backends.backend_row import (
    BackendRow,
    read_outcome,
    row_of_absent,
    row_of_fault,
    row_of_report,
    rows_as_json,
)
from synapse_host.backends.discovery import BackendEntry, list_backends
from synapse_host.backends.evidence_cache import CacheKey, cache_key, read_report, write_report
from synapse_host.backends.known import KNOWN_BACKENDS, current_platform
from synapse_host.backends.probe_child import run_probe_child
from synapse_host.backends.probe_report import PROBE_TIMEOUT_S, ChildOutcome, ProbeReport
from synapse_host.hookspecs import BackendSettings

__all__ = ["BackendRow", "probe_all", "probe_backend", "rows_as_json"]

#: Children at once: each imports a heavy library, and its clock runs while it waits for a processor.
_CHILDREN_AT_ONCE = 4

#: Runs the child of one backend; the timeout is in seconds.
ChildRunner = Callable[[str, float], Awaitable[ChildOutcome]]


def _real_child(settings: BackendSettings) -> ChildRunner:
    async def run(backend: str, timeout_s: float) -> ChildOutcome:
        return await run_probe_child(backend, timeout_s=timeout_s, settings=settings)

    return run


async def probe_backend(
    entry: BackendEntry,
    *,
    cache_dir: Path,
    refresh: bool = False,
    timeout_s: float = PROBE_TIMEOUT_S,
    run_child: ChildRunner | None = None,
    settings: BackendSettings = MappingProxyType({}),
) -> BackendRow:
    """The row of one installed backend, from the cache below ``cache_dir`` or from a child of at most ``timeout_s``.

    ``settings`` are the operator's for this backend; a report made under others is not believed.

    ``refresh`` asks the machine again although nothing of the plugin changed, for example after a driver was
    installed. Never raises for what the plugin or the cache does.
    """
    machine = current_platform()
    if entry.fault is not None:
        return row_of_fault(entry, machine)
    folder = cache_dir / "capability"
    key, kept = await anyio.to_thread.run_sync(_recall, entry, folder, settings)
    if kept is not None and not refresh:
        return row_of_report(entry, kept, machine)
    outcome = await (run_child or _real_child(settings))(entry.name, timeout_s)
    report = read_outcome(entry, outcome, timeout_s=timeout_s)
    await anyio.to_thread.run_sync(write_report, folder, key, report)
    return row_of_report(entry, report, machine, outcome.stderr_tail)


async def probe_all(
    *,
    cache_dir: Path,
    entries: Sequence[BackendEntry] | None = None,
    refresh: bool = False,
    timeout_s: float = PROBE_TIMEOUT_S,
    run_child: ChildRunner | None = None,
    settings: Mapping[str, BackendSettings] = MappingProxyType({}),
) -> list[BackendRow]:
    """A row for every installed backend and for every known one that is not installed, sorted by backend id.

    ``settings`` are the operator's, by backend id.
    """
    installed = await anyio.to_thread.run_sync(list_backends) if entries is None else entries
    limiter = anyio.CapacityLimiter(_CHILDREN_AT_ONCE)
    rows: dict[str, BackendRow] = {}

    async def probe(entry: BackendEntry) -> None:
        async with limiter:
            rows[entry.name] = await probe_backend(
                entry,
                cache_dir=cache_dir,
                refresh=refresh,
                timeout_s=timeout_s,
                run_child=run_child,
                settings=settings.get(entry.name, {}),
            )

    async with anyio.create_task_group() as probes:
        for entry in installed:
            probes.start_soon(probe, entry)
    machine = current_platform()
    absent = [known for name, known in KNOWN_BACKENDS.items() if name not in rows]
    return sorted([*rows.values(), *(row_of_absent(known, machine) for known in absent)], key=lambda row: row.backend)


def _recall(entry: BackendEntry, folder: Path, settings: BackendSettings) -> tuple[CacheKey, ProbeReport | None]:
    key = cache_key(entry, settings)
    return key, read_report(folder, key)
