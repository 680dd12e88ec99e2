"""models.catalog: every entry of the catalog, where it runs on this machine and whether it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictStr

from synapse_host.catalog.entries import CatalogEntry
from synapse_host.catalog.entry_backends import EntryBackend
from synapse_host.catalog.standing import CatalogStanding
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.hookspecs import Task
from synapse_host.operations.constraints import Params
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object


class ModelsCatalogParams(Params):
    """Filters; an entry is listed when all of those given hold for it."""

    query: Annotated[StrictStr, Field(max_length=256)] | None = None
    task: Task | None = None
    runnable_here: StrictBool | None = None
    installed: StrictBool | None = None


@value_object
class CataloguingService:
    """Lists the catalog. Every field is there in every row; what is not known is null."""

    standing: CatalogStanding
    checks: SelfChecks
    module_generation: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("models.catalog", "query", ModelsCatalogParams, self.catalog)]

    async def catalog(self, params: ModelsCatalogParams, context: RequestContext) -> Reply:
        """The entries that pass every filter, by id."""
        await self.standing.look_again()
        listed = [(entry, await self.standing.backends(entry)) for entry in self.standing.catalog]
        return Reply(
            {
                "module_generation": self.module_generation,
                "catalog_revision": self.standing.catalog.revision,
                "models": [
                    self._row(entry, backends)
                    for entry, backends in listed
                    if self._passes(params, entry, any(backend.runnable for backend in backends))
                ],
            }
        )

    def _passes(self, params: ModelsCatalogParams, entry: CatalogEntry, runnable: bool) -> bool:
        words = (params.query or "").strip().casefold()
        return (
            any(words in text.casefold() for text in (entry.id, entry.name, entry.description))
            and params.task in (None, entry.task)
            and params.runnable_here in (None, runnable)
            and params.installed in (None, self.standing.state(entry) == "installed")
        )

    def _row(self, entry: CatalogEntry, backends: Sequence[EntryBackend]) -> dict[str, Any]:
        return {
            "id": entry.id,
            "task": entry.task,
            "name": entry.name,
            "description": entry.description,
            "default_for_task": entry.default_for_task,
            "upstream": {"hf_repo": entry.upstream.hf_repo, "revision": entry.upstream.revision},
            "manifest_digest": entry.manifest_digest,
            "download_bytes": download_bytes(entry, backends),
            "install_state": self.standing.state(entry),
            "backends": [self._backend(entry, backend) for backend in backends],
        }

    def _backend(self, entry: CatalogEntry, backend: EntryBackend) -> dict[str, Any]:
        installed = self.standing.install(entry, backend.row.backend) is not None
        check = self.checks.standing(entry, backend.row.backend).to_wire() if installed else None
        return {
            "backend": backend.row.backend,
            "lane_id": backend.lane_id,
            "fingerprint": backend.row.fingerprint,
            "runnable": backend.runnable,
            "reason": backend.reason,
            "reason_detail": backend.reason_detail,
            "installed": installed,
            "self_check": check,
        }


def download_bytes(entry: CatalogEntry, backends: Sequence[EntryBackend]) -> int:
    """Bytes of the distinct files that the runnable ones of ``backends`` need, installed or not."""
    needed = entry.files_of([backend.row.backend for backend in backends if backend.runnable])
    return sum({file.sha256: file.size_bytes for file in needed}.values())
