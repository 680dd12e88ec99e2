"""Removing an entry: its installs, what its checks found, and the content nobody else needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.installs import Install, Installs
from synapse_host.downloads.job_pins import release_install
from synapse_host.downloads.seams import HolderSource
from synapse_host.errors import ModelInUse
from synapse_host.store.download_store import DownloadStore
from synapse_host.values import value_object


@value_object
class Removed:
    """What was removed: the manifests, in order, and the bytes of content that went with them."""

    manifests: tuple[str, ...]
    freed_bytes: int


class Removal:
    """Removes entries; ``holders`` are asked first, in order. ``ready`` sees that the cache can be used."""

    def __init__(
        self,
        cache: BlobCache,
        store: DownloadStore,
        installs: Installs,
        holders: Sequence[HolderSource],
        ready: Callable[[], Awaitable[None]],
    ) -> None:
        self._cache = cache
        self._store = store
        self._installs = installs
        self._holders = holders
        self._ready = ready

    async def remove(self, catalog_id: str) -> Removed:
        """Remove every install of the entry, current and stale. Nothing is removed that was not installed.

        Raises:
            ModelInUse: somebody holds it; details ``catalog_id``, ``holders``.
            StoreFailure: the store or the cache cannot be written; what is left goes at the next boot.

        """
        self._refuse_held(catalog_id)
        if self._installs.of(catalog_id):
            await self._ready()
            self._refuse_held(catalog_id)
        # No request finds the entry installed from here on; nothing was awaited since its holders were asked.
        withdrawn = self._installs.withdraw(catalog_id)
        with anyio.CancelScope(shield=True):
            removed = await self._carry_out(catalog_id, withdrawn)
        return removed  # noqa: RET504 - a scope might swallow, says its type

    def _refuse_held(self, catalog_id: str) -> None:
        # A running job holds its lane and is open: named once.
        named = list(dict.fromkeys(holder for source in self._holders for holder in source.holders(catalog_id)))
        if named:
            first, more = named[0], f" and {len(named) - 1} more" if named[1:] else ""
            raise ModelInUse(
                f"{catalog_id!r} is held by {first.shown}{more}; {first.remedy}, then remove again",
                details={"catalog_id": catalog_id, "holders": [holder.to_wire() for holder in named]},
            )

    async def _carry_out(self, catalog_id: str, withdrawn: Sequence[Install]) -> Removed:
        try:
            manifests = await self._store.remove_installs(catalog_id)
        except BaseException:
            for install in withdrawn:
                self._installs.put(install)
            raise
        freed = 0
        for install in withdrawn:
            freed += await anyio.to_thread.run_sync(release_install, self._cache, install)
        return Removed(tuple(manifests), freed)
