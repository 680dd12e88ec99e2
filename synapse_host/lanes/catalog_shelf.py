"""The lanes of the catalog: one for every backend that runs here of every entry that is installed.

Installs come and go in the downloads room. Nobody tells the shelf: it looks whenever a lane is asked for, which is a
lookup in memory, so that no request can be served from an install that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from synapse_host.catalog.entries import CatalogBackend, CatalogEntry
from synapse_host.catalog.entry_backends import EntryBackend, first_runnable, unavailable
from synapse_host.catalog.standing import CatalogStanding
from synapse_host.downloads.installs import Install
from synapse_host.downloads.seams import Holder
from synapse_host.errors import EXCEPTIONS
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable

OpenLane = Callable[[CatalogEntry, EntryBackend, Install], Lane]
#: States in which a lane holds its files, or is about to.
_LOADED = frozenset({LaneState.LOADING, LaneState.READY, LaneState.UNLOADING})


class CatalogShelf:
    """Gives each installed entry its lanes in ``lanes``; ``bury`` ends a lane that lost its install.

    ``open_download`` names the job that downloads an entry's current manifest now.
    """

    def __init__(
        self,
        standing: CatalogStanding,
        lanes: LaneTable,
        *,
        open_lane: OpenLane,
        bury: Callable[[Lane], None],
        open_download: Callable[[CatalogEntry], str | None] = lambda entry: None,
    ) -> None:
        self.standing = standing
        self._lanes = lanes
        self._open_lane = open_lane
        self._bury = bury
        self._open_download = open_download

    async def select(self, entry: CatalogEntry, pinned: CatalogBackend | None) -> Lane:
        """The lane of ``pinned``, or of the first backend that runs; never another in its place.

        Raises:
            BackendUnavailable: it does not run here, or none does.
            SynapseError: ``model_not_installed``.

        """
        backends = await self.standing.backends(entry, pinned.backend if pinned else None)
        chosen = _pinned(backends, pinned) if pinned else first_runnable(backends)
        if chosen is None:
            raise unavailable(entry, None, backends)
        if not chosen.runnable:
            raise unavailable(entry, chosen.lane_id, [chosen])
        return self.lane(entry, chosen) or self._not_installed(entry, chosen)

    def lane(self, entry: CatalogEntry, backend: EntryBackend) -> Lane | None:
        """The lane of a runnable backend; None where the entry is not installed for it."""
        install = self.standing.install(entry, backend.row.backend)
        present = self._lanes.find(backend.lane_id)
        if install is None:
            self._withdraw(present)
            return None
        return present or self._open_lane(entry, backend, install)

    async def fill(self) -> None:
        """Give every installed entry its lanes and take those away that lost their install: before a listing."""
        if self.standing.installs.all():
            await self.standing.look()
        for entry in self.standing.catalog:
            for backend in self.standing.seen(entry):
                if backend.runnable:
                    self.lane(entry, backend)

    def holders(self, catalog_id: str) -> list[Holder]:
        """Who holds the lanes of an entry, and which of them are loaded (wire contract section 2, ``model_in_use``)."""
        return [holder for lane in self._lanes if lane.model.catalog_id == catalog_id for holder in lane_holders(lane)]

    def _withdraw(self, lane: Lane | None) -> None:
        if lane is not None and not lane.holders:
            self._lanes.discard(lane.model.model_id)
            self._bury(lane)

    def _not_installed(self, entry: CatalogEntry, backend: EntryBackend) -> NoReturn:
        job_id = self._open_download(entry)
        what_to_do = f"wait for download {job_id!r}" if job_id else f"call models.download for {entry.id!r}"
        raise EXCEPTIONS["model_not_installed"](
            f"model {entry.id!r} is not installed for backend {backend.row.backend!r}; {what_to_do}, then ask again",
            details={
                "catalog_id": entry.id,
                "lane_id": backend.lane_id,
                "download_op": "models.download",
                "download_job_id": job_id,
            },
        )


def lane_holders(lane: Lane) -> list[Holder]:
    """Who holds ``lane``; being loaded is a hold too."""
    held = [_holder(members) for members in lane.holders]
    return [Holder("loaded", lane.model.model_id), *held] if lane.state in _LOADED else held


def _holder(members: dict[str, str]) -> Holder:
    names = {"job": "job_id", "self_check": "check_id", "request": "lease_id"}
    for kind in ("job", "self_check", "request"):
        if members["kind"] == kind:
            return Holder(kind, members[names[kind]])
    raise AssertionError(f"a lane is held by {members}, of no kind the contract has")


def _pinned(backends: list[EntryBackend], row: CatalogBackend) -> EntryBackend:
    return next(backend for backend in backends if backend.row.backend == row.backend)
