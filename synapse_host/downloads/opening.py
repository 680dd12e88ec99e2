"""The downloads room of a host, by its settings."""

from __future__ import annotations

from collections.abc import Callable

from anyio.abc import TaskGroup

from synapse_host.downloads.room import DownloadRoom, RoomPlan
from synapse_host.downloads.seams import JobCounts
from synapse_host.downloads.sources import Sources
from synapse_host.settings import Settings
from synapse_host.store.database import Store
from synapse_host.store.module_store import ModuleStore


async def open_room(
    settings: Settings, store: Store, counts: JobCounts, tasks: TaskGroup, now_ms: Callable[[], int]
) -> DownloadRoom:
    """The room, not started yet; its jobs run in ``tasks``. Raises ``StoreFailure``."""
    modules, token = ModuleStore(store), settings.hub_token
    return DownloadRoom(
        RoomPlan(
            store=store,
            cache_root=settings.model_cache,
            host_id=await modules.host_id(),
            module_generation=await modules.module_generation(),
            sources=Sources(
                settings.downloads.endpoint,
                settings.downloads.mirror or None,
                token.get_secret_value() if token is not None else None,
            ),
            counts=counts,
            tasks=tasks,
            now_ms=now_ms,
            retention_ms=round(settings.jobs.retention_s * 1000),
            max_bytes=settings.cache.max_bytes,
        )
    )
