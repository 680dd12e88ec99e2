"""A downloads room of its own, on a real store, a real cache and a source of files that does as it is told."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.manifest import Manifest, WantedFile
from synapse_host.downloads.room import DownloadRoom, RoomPlan
from synapse_host.downloads.sources import Sources
from synapse_host.jobs.counters import JobCounters
from synapse_host.store.database import Store
from synapse_host.store.module_store import ModuleStore

RETENTION_MS = 1000
DEADLINE_S = 30.0


def manifest_of(files: Mapping[str, bytes], *, catalog_id: str = "tiny", version: int = 1) -> Manifest:
    """A manifest of contents by role; ``version`` makes another manifest of the same files."""
    wanted = [
        WantedFile(role, f"{role}.bin", hashlib.sha256(body).hexdigest(), len(body), f"/{catalog_id}/{role}.bin")
        for role, body in files.items()
    ]
    return Manifest(catalog_id, f"{version:064x}", tuple(wanted))


@dataclass
class ScriptedSource:
    """Gives files from memory. ``hold`` makes it wait, ``fail`` is raised for a file's name; ``fetched`` names them."""

    cache: BlobCache
    files: dict[str, bytes]
    fail: dict[str, Exception] = field(default_factory=dict)
    hold: anyio.Event | None = None
    waiting: anyio.Event = field(default_factory=anyio.Event)
    fetched: list[str] = field(default_factory=list)

    async def fetch(self, wanted: WantedFile, *, owner: str, on_bytes: Callable[[int], None]) -> object:
        """Bring ``wanted`` into the cache half, wait if told to, and then the rest."""
        if wanted.name in self.fail:
            raise self.fail[wanted.name]
        self.fetched.append(wanted.name)
        body = self.files[wanted.sha256]
        with self.cache.ingest() as ingest:
            ingest.write(body[: len(body) // 2])
            on_bytes(len(body) // 2)
            self.waiting.set()
            if self.hold is not None:
                await self.hold.wait()
            ingest.write(body[len(body) // 2 :])
            on_bytes(len(body))
            return ingest.commit(name=wanted.name, source_url="memory", owner=owner, expected_sha256=wanted.sha256)


@dataclass(slots=True)
class RunningRoom:
    """A room, what it stands on, and a clock that is moved by hand."""

    room: DownloadRoom
    source: ScriptedSource
    counts: JobCounters
    store: Store
    clock_ms: list[int]

    async def ended(self, job_id: str) -> dict[str, Any]:
        """The status of a job once it has ended."""
        with anyio.fail_after(DEADLINE_S):
            return await self.room.jobs.ended(job_id)

    async def download(self, manifest: Manifest, key: str | None = None) -> dict[str, Any]:
        """Download and wait for the end."""
        return await self.ended((await self.room.jobs.submit(manifest, key))["job_id"])

    def digests(self) -> list[str]:
        """What the cache holds."""
        return self.room.cache.layout.digests()

    def pins(self) -> list[tuple[str, ...]]:
        """Whose pins there are, without digests and host, sorted, each once."""
        owners = {owner.partition("/")[2] for _, owner in self.room.cache.pins()}
        return sorted(tuple(owner.split("/")[:2]) for owner in owners)


@asynccontextmanager
async def running_room(
    home: Path, contents: Sequence[bytes], *, cache_root: Path | None = None, max_bytes: int = 1 << 40
) -> AsyncIterator[RunningRoom]:
    """A room on the store below ``home``, as a host that has just started would have it."""
    store = Store.open(home / "synapse.db")
    counts, clock_ms = JobCounters(), [1_000_000]
    modules = ModuleStore(store)
    try:
        async with anyio.create_task_group() as tasks:
            plan = RoomPlan(
                store=store,
                cache_root=cache_root or home / "models",
                host_id=await modules.host_id(),
                module_generation=await modules.begin_generation(),
                sources=Sources("http://127.0.0.1:9"),
                counts=counts,
                tasks=tasks,
                now_ms=lambda: clock_ms[0],
                retention_ms=RETENTION_MS,
                max_bytes=max_bytes,
            )
            source = ScriptedSource(
                DownloadRoom(plan).cache, {hashlib.sha256(content).hexdigest(): content for content in contents}
            )
            room = DownloadRoom(plan, source)
            try:
                await room.start()
                yield RunningRoom(room, source, counts, store, clock_ms)
                tasks.cancel_scope.cancel()
            finally:
                room.close()
    finally:
        store.close()
