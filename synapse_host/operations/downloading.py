"""models.download, models.download.cancel and models.remove (wire contract section 5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, StrictStr

from synapse_host.downloads.removal import Removal
from synapse_host.downloads.room import DownloadRoom
from synapse_host.downloads.seams import DownloadCatalog
from synapse_host.operations.constraints import Name, Params
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object


class DownloadParams(Params):
    """The entry to download, and the key under which to ask for it again."""

    catalog_id: Name
    request_key: Annotated[StrictStr, Field(max_length=256)] | None = None


class CancelParams(Params):
    """The job to cancel."""

    job_id: Name


class RemoveParams(Params):
    """The entry to remove."""

    catalog_id: Name


@value_object
class DownloadingService:
    """Installs and removes models of the catalog. Statuses are flat, as the contract has them.

    ``removed`` hears of an entry that was: what its checks found is to be found anew.
    """

    catalog: DownloadCatalog
    room: DownloadRoom
    removal: Removal
    removed: Callable[[str], None]

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("models.download", "mutate", DownloadParams, self.download),
            Method("models.download.cancel", "mutate", CancelParams, self.cancel),
            Method("models.remove", "mutate", RemoveParams, self.remove),
        ]

    async def download(self, params: DownloadParams, context: RequestContext) -> Reply:
        """Start or join a download; the reply comes before anything is fetched."""
        manifest = await self.catalog.wanted(params.catalog_id)
        await self.room.require_cache(to_write=False)
        return Reply(await self.room.jobs.submit(manifest, params.request_key))

    async def cancel(self, params: CancelParams, context: RequestContext) -> Reply:
        """End a download for everybody who waits for it, unless it has ended."""
        return Reply(await self.room.jobs.cancel(params.job_id))

    async def remove(self, params: RemoveParams, context: RequestContext) -> Reply:
        """Remove every install of an entry, and the content nothing else needs."""
        self.catalog.require_entry(params.catalog_id)
        removed = await self.removal.remove(params.catalog_id)
        self.removed(params.catalog_id)
        return Reply(
            {
                "catalog_id": params.catalog_id,
                "removed_manifests": list(removed.manifests),
                "freed_bytes": removed.freed_bytes,
            }
        )
