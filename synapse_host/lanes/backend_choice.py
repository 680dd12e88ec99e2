"""Finds the backend an operator named and refuses, with its reason, one that cannot serve the task here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import anyio.to_thread

from synapse_host.backends.backend_row import row_of_absent
from synapse_host.backends.capability import BackendRow, probe_backend
from synapse_host.backends.discovery import BackendEntry, list_backends
from synapse_host.backends.known import ALIASES, KNOWN_BACKENDS, current_platform
from synapse_host.errors import EXCEPTIONS, BackendUnavailable, InvalidRequest, SynapseError
from synapse_host.hookspecs import BackendDescription, BackendSettings, Task

#: Tasks whose free-form models only engines with numbers of our own may run (wire contract, removed paths).
OWNED_ONLY: frozenset[Task] = frozenset({"embed", "rerank"})
#: Known backends without numbers of our own, present and past.
NOT_OWNED = frozenset({"llama", "ort"})


class BackendChoice:
    """Looks backends up by id or engine name; evidence is cached below ``cache_dir``.

    ``settings`` are the operator's, by backend id.
    """

    def __init__(self, cache_dir: Path, settings: Mapping[str, BackendSettings] = MappingProxyType({})) -> None:
        self._cache_dir = cache_dir
        self._settings = settings
        self._doubted: set[str] = set()

    async def for_loading(self, engine: str, task: Task) -> BackendDescription:
        """The description of the backend that ``engine`` names, by backend id or by engine name.

        Raises:
            InvalidRequest: no backend of that name is known, or it does not serve ``task`` with numbers of our own.
            BackendUnavailable: it cannot run on this machine, or is not installed.
            SynapseError: ``owned_cuda_unsupported`` for the CUDA backend.

        """
        entry = await self._entry(engine)
        row = await self._probe(entry, refresh=entry.name in self._doubted)
        self._doubted.discard(entry.name)
        if not row.runnable:
            # A refusal may be out of date: a driver installed since, a machine that was busy.
            row = await self._probe(entry, refresh=True)
        if row.description is None or not row.runnable:
            raise _unavailable(row)
        _check_task(row.description, task)
        return row.description

    async def require_runnable(self, backend: str) -> None:
        """Refuse a backend whose worker is not what its model was registered with, where it cannot run any more.

        The machine is asked anew at the first such worker, and whenever it is said that the backend cannot run.

        Raises:
            BackendUnavailable: it cannot run; the message says why.
            SynapseError: ``owned_cuda_unsupported`` for the CUDA backend.

        """
        entry = await self._entry(backend)
        first = backend not in self._doubted
        self._doubted.add(backend)
        row = await self._probe(entry, refresh=first)
        if not row.runnable and not first:
            row = await self._probe(entry, refresh=True)
        if not row.runnable:
            raise _unavailable(row)

    async def require_installed(self, backend: str) -> None:
        """Refuse, with ``BackendUnavailable``, a backend whose plugin was uninstalled since its model was loaded."""
        entries = await anyio.to_thread.run_sync(list_backends)
        if any(entry.name == backend for entry in entries):
            return
        known = KNOWN_BACKENDS.get(backend)
        if known is not None:
            raise _unavailable(row_of_absent(known, current_platform()))
        message = f"backend {backend!r} is not installed any more; install its plugin again"
        raise _unavailable(BackendRow(backend, False, reason="worker_missing", message=message))

    async def _entry(self, engine: str) -> BackendEntry:
        entries = await anyio.to_thread.run_sync(list_backends)
        names = ALIASES | {known.engine: known.backend for known in KNOWN_BACKENDS.values()}
        backend = names.get(engine, engine)
        for entry in entries:
            if entry.name == backend:
                return entry
        known = KNOWN_BACKENDS.get(backend)
        if known is not None:
            raise _unavailable(row_of_absent(known, current_platform()))
        for entry in entries:
            row = await self._probe(entry)
            if row.description is not None and row.description.engine == engine:
                return entry
        choices = ", ".join(sorted({entry.name for entry in entries} | set(KNOWN_BACKENDS)))
        raise InvalidRequest(
            f"engine {engine!r} is no backend of this host; it knows {choices}", details={"engine": engine}
        )

    async def _probe(self, entry: BackendEntry, *, refresh: bool = False) -> BackendRow:
        settings = self._settings.get(entry.name, {})
        return await probe_backend(entry, cache_dir=self._cache_dir, refresh=refresh, settings=settings)


def _unavailable(row: BackendRow) -> SynapseError:
    details = {
        "catalog_id": None,
        "lane_id": None,
        "backends": [{"backend": row.backend, "reason": row.reason, "reason_detail": row.reason_detail}],
    }
    message = f"backend {row.backend!r} cannot run here: {row.message}"
    if row.backend == "cuda" and row.reason in ("device_missing", "device_below_floor"):
        return EXCEPTIONS["owned_cuda_unsupported"](message, details=details)
    return BackendUnavailable(message, details=details)


def _check_task(description: BackendDescription, task: Task) -> None:
    if task not in description.tasks:
        raise InvalidRequest(
            f"engine {description.engine!r} does not serve {task}; it serves {', '.join(description.tasks)}",
            details={"engine": description.engine, "task": task},
        )
    if task in OWNED_ONLY and not description.owned:
        raise InvalidRequest(
            f"engine {description.engine!r} is not an owned one: its numbers are held against no reference, and the "
            f"host cannot vouch for them, so it may not serve {task}; use an owned engine such as 'cpu' or 'metal'",
            details={"engine": description.engine, "task": task},
        )
