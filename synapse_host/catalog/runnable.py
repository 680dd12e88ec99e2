"""Which of the catalog's backends run on this machine, looked at when somebody first asks and kept in memory.

A request never waits for a probe that has been made: looking reads the metadata of every installed distribution. What
does not run is looked at again now and then, since a plugin may have been installed meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType

import anyio
import anyio.to_thread

from synapse_host.backends.backend_row import BackendRow, row_of_absent
from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import list_backends
from synapse_host.backends.known import KNOWN_BACKENDS, current_platform
from synapse_host.hookspecs import BackendSettings

#: Seconds after which what did not run is worth another look.
STALE_S = 30.0
#: What no installation changes.
_FINAL = "not_supported_on_platform"

Look = Callable[[Collection[str], bool], Awaitable[Mapping[str, BackendRow]]]


class BackendWatch:
    """The last look at ``backend_ids``; ``look`` makes one, asking the machine again where its second argument says."""

    def __init__(self, backend_ids: Collection[str], look: Look, clock: Callable[[], float]) -> None:
        self._ids = backend_ids
        self._look = look
        self._clock = clock
        self._lock = anyio.Lock()
        self._looked_at = 0.0
        #: By backend id; None before the first look.
        self.seen: Mapping[str, BackendRow] | None = None

    async def rows(self) -> Mapping[str, BackendRow]:
        """What was seen, by backend id; the first call looks."""
        if self.seen is None:
            async with self._lock:
                if self.seen is None:
                    await self._see(again=False)
        assert self.seen is not None
        return self.seen

    async def refreshed(self) -> Mapping[str, BackendRow]:
        """What was seen, after another look where one may show more."""
        rows = await self.rows()
        hopeful = any(not row.runnable and row.reason != _FINAL for row in rows.values())
        if not hopeful or self._fresh:
            return rows
        async with self._lock:
            if not self._fresh:
                await self._see(again=True)
        assert self.seen is not None
        return self.seen

    @property
    def _fresh(self) -> bool:
        return self._clock() - self._looked_at < STALE_S

    async def _see(self, *, again: bool) -> None:
        self.seen = MappingProxyType(dict(await self._look(self._ids, again)))
        self._looked_at = self._clock()


async def look_at_machine(
    backend_ids: Collection[str], again: bool, *, cache_dir: Path, settings: Mapping[str, BackendSettings]
) -> dict[str, BackendRow]:
    """A row for each of ``backend_ids``, installed or not; ``again`` probes anew what the cache says does not run."""
    entries = {entry.name: entry for entry in await anyio.to_thread.run_sync(list_backends)}
    machine = current_platform()
    rows: dict[str, BackendRow] = {}

    async def probe(name: str) -> None:
        told = settings.get(name, {})
        row = await probe_backend(entries[name], cache_dir=cache_dir, settings=told)
        if again and not row.runnable:
            row = await probe_backend(entries[name], cache_dir=cache_dir, settings=told, refresh=True)
        rows[name] = row

    async with anyio.create_task_group() as probes:
        for name in backend_ids:
            if name in entries:
                probes.start_soon(probe, name)
            elif name in KNOWN_BACKENDS:
                rows[name] = row_of_absent(KNOWN_BACKENDS[name], machine)
            else:
                message = f"backend {name!r} is not installed; install its plugin"
                rows[name] = BackendRow(name, False, reason="worker_missing", message=message)
    return rows
