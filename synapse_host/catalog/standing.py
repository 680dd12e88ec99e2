"""What the catalog's entries are on this host: where they run and whether they are installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from synapse_host.catalog.entries import Catalog, CatalogEntry
from synapse_host.catalog.entry_backends import EntryBackend, entry_backends, unavailable
from synapse_host.catalog.runnable import BackendWatch
from synapse_host.downloads.installs import Install, Installs
from synapse_host.downloads.manifest import Manifest, WantedFile
from synapse_host.errors import InvalidRequest, UnknownModel
from synapse_host.identity.numeric_profile import EngineIdentity

InstallState = Literal["not_installed", "installed", "stale"]


class CatalogStanding:
    """The catalog of this host; what downloading, listing and serving ask of it."""

    def __init__(self, catalog: Catalog, watch: BackendWatch, installs: Installs) -> None:
        self.catalog = catalog
        self.installs = installs
        self._watch = watch

    async def backends(self, entry: CatalogEntry, wanted: str | None = None) -> list[EntryBackend]:
        """The entry's rows on this machine, looked at again now and then where ``wanted``, or any, does not run."""
        found = entry_backends(entry, await self._watch.rows())
        if any(backend.runnable for backend in found if wanted in (None, backend.row.backend)):
            return found
        return entry_backends(entry, await self._watch.refreshed())

    async def look_again(self) -> None:
        """Look at what did not run, unless that was done just now."""
        await self._watch.refreshed()

    def seen(self, entry: CatalogEntry) -> list[EntryBackend]:
        """The same without looking; empty before the first look."""
        return entry_backends(entry, self._watch.seen) if self._watch.seen is not None else []

    def engine(self, entry: CatalogEntry, backend: str) -> EngineIdentity:
        """The engine that runs a declared row here, with all its flags; as the document has it before it was seen."""
        one = next((one for one in self.seen(entry) if one.row.backend == backend), None)
        if one is not None and one.description is not None:
            told = one.description
            return EngineIdentity(told.engine, told.engine_version, told.build_flags)
        row = entry.row(backend)
        assert row is not None, f"{entry.id} declares no backend {backend!r}"
        return row.engine.identity

    async def look(self) -> None:
        """See which backends run, unless that was seen."""
        await self._watch.rows()

    def install(self, entry: CatalogEntry, backend: str) -> Install | None:
        """The install the entry's lane on ``backend`` serves from: whole, current, and with every file it needs."""
        install = self.installs.current(entry.id, entry.manifest_digest)
        if install is None or not install.valid:
            return None
        held = {member.sha256 for member in install.members.values()}
        return install if all(file.sha256 in held for file in entry.files_of([backend])) else None

    def state(self, entry: CatalogEntry) -> InstallState:
        """``stale``: what is installed is of another manifest, or was found damaged; a download makes it current."""
        current = self.installs.current(entry.id, entry.manifest_digest)
        if current is not None and current.valid:
            return "installed"
        return "stale" if self.installs.of(entry.id) else "not_installed"

    def require_entry(self, catalog_id: str) -> None:
        """Raise what ``entry_of`` raises."""
        self.entry_of(catalog_id)

    def entry_of(self, catalog_id: str) -> CatalogEntry:
        """The entry of a catalog id, for downloading and removing.

        Raises:
            InvalidRequest: it is the id of a lane, declared or not; details ``model_id``, ``catalog_id``.
            UnknownModel: there is no such entry; details ``model_id``.

        """
        entry, derived = self.catalog.entry(catalog_id), self.catalog.derived(catalog_id)
        if entry is not None:
            return entry
        if derived is not None:
            raise InvalidRequest(
                f"{catalog_id!r} is a lane of {derived[0].id!r}, and models are downloaded and removed whole; "
                f"name {derived[0].id!r}",
                details={"model_id": catalog_id, "catalog_id": derived[0].id},
            )
        raise UnknownModel(
            f"the catalog has no model {catalog_id!r}; it has {_listed(self.catalog)}", details={"model_id": catalog_id}
        )

    async def wanted(self, catalog_id: str) -> Manifest:
        """What a download of the entry fetches: the files its runnable backends need.

        Raises:
            InvalidRequest, UnknownModel: as ``entry_of``.
            BackendUnavailable: no backend runs it here.

        """
        entry = self.entry_of(catalog_id)
        backends = await self.backends(entry)
        runnable = [backend.row.backend for backend in backends if backend.runnable]
        if not runnable:
            raise unavailable(entry, None, backends)
        base = f"{entry.upstream.hf_repo}/resolve/{entry.upstream.revision}"
        files = (
            WantedFile(file.role, file.path, file.sha256, file.size_bytes, f"{base}/{file.path}")
            for file in entry.files_of(runnable)
        )
        return Manifest(entry.id, entry.manifest_digest, tuple(files))


def _listed(entries: Iterable[CatalogEntry]) -> str:
    return ", ".join(entry.id for entry in entries) or "none"
