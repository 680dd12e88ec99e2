"""The part of the composition root that makes the catalog: its document, its lanes, and their checks.

Nothing is decided here. The shipped document is read at start; which backends run is looked at when somebody asks.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from anyio.abc import TaskGroup

from synapse_host.catalog.document import read_catalog
from synapse_host.catalog.entries import CATALOG_BACKENDS, Catalog, CatalogEntry
from synapse_host.catalog.entry_backends import EntryBackend
from synapse_host.catalog.runnable import BackendWatch, look_at_machine
from synapse_host.catalog.standing import CatalogStanding
from synapse_host.certification.alias_table import AliasTable
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_check import SelfCheckRow
from synapse_host.certification.self_check_fixtures import Fixture, parse_fixtures, shipped_fixtures
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.downloads.installs import Install
from synapse_host.downloads.room import DownloadRoom
from synapse_host.jobs.open_jobs import OpenJobs
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl
from synapse_host.lanes.resolution import why_not_restored
from synapse_host.lanes.strikes import CATALOG
from synapse_host.models.catalog_model import catalog_model
from synapse_host.models.catalog_package import CatalogPackage, StartWorker
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.operations.cataloguing import CataloguingService
from synapse_host.operations.downloading import DownloadingService
from synapse_host.operations.job_holders import JobHolders
from synapse_host.operations.listing import ListingService
from synapse_host.operations.load_fetching import LoadFetching
from synapse_host.settings import Settings

log = logging.getLogger("synapse_host")

#: Beside an injected catalog: what its lanes are checked against.
FIXTURES_FILE = "fixtures.json"


class HostCatalog:
    """The catalog of one host.

    ``runtime`` and ``start_worker`` are those of every lane; ``downloads`` has what is installed and its content.
    """

    def __init__(
        self,
        settings: Settings,
        lanes: LaneTable,
        downloads: DownloadRoom,
        *,
        runtime: Callable[[RegisteredModel], LaneRuntime],
        start_worker: StartWorker,
        save_check: Callable[[SelfCheckRow], Awaitable[None]],
        tasks: TaskGroup,
        os_build: str,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._downloads = downloads
        self._runtime = runtime
        self._start_worker = start_worker
        self._tasks = tasks
        self.catalog = host_catalog(settings)
        #: Where the files of models lie that were loaded from elsewhere.
        self.fetching = LoadFetching(downloads, settings.paths.cache_dir / "loaded")
        look = partial(look_at_machine, cache_dir=settings.paths.cache_dir, settings=settings.of_backends)
        declared = {row.backend for entry in self.catalog for row in entry.backends}
        self.standing = CatalogStanding(self.catalog, BackendWatch(declared, look, time.monotonic), downloads.installs)
        self.shelf = CatalogShelf(
            self.standing,
            lanes,
            open_lane=self._open_lane,
            bury=self._bury,
            open_download=lambda entry: downloads.jobs.open_job(entry.id, entry.manifest_digest),
        )
        self.checks = SelfChecks(
            self.standing,
            lambda: self._fixtures,
            os_build=os_build,
            save=save_check,
            figures=self._reference_figures,
            tasks=tasks,
            now_ms=lambda: time.time_ns() // 1_000_000,
        )

    def restorable(self, models: Sequence[RegisteredModel]) -> list[RegisteredModel]:
        """Those of the stored ``models`` that may serve; one WARN for each that may not, and its pins go at start.

        What nobody is loaded from any more is removed with them.
        """
        kept = []
        for model in models:
            fault = why_not_restored(model, self.catalog)
            if fault is None:
                kept.append(model)
            else:
                log.warning("stored model %r is not restored: %s", model.model_id, fault)
        self.fetching.forget_others(model.model_path for model in kept)
        return kept

    def services(
        self,
        ledger: CertificationLedger,
        aliases: AliasTable,
        pauses: PauseControl,
        jobs: OpenJobs,
        generation: int,
    ) -> tuple[DownloadingService, CataloguingService, ListingService]:
        """Who answers for the catalog: what it has, what is installed of it, and which lanes there are."""
        room = self._downloads
        return (
            DownloadingService(
                self.standing, room, room.removal([self.shelf, JobHolders(self.catalog, jobs)]), self.checks.forget
            ),
            CataloguingService(self.standing, self.checks, generation),
            ListingService(self._lanes, self.shelf, self.checks, ledger, aliases, pauses, generation),
        )

    def _open_lane(self, entry: CatalogEntry, backend: EntryBackend, install: Install) -> Lane:
        package = CatalogPackage(entry, backend, self._downloads.cache, self._downloads.verifier.doubt, self._tasks)
        model = catalog_model(entry, backend, install, self._downloads.cache.path)
        runtime = replace(
            self._runtime(model),
            read_tokenizer=package.read_tokenizer,
            start_worker=partial(package.start_worker, self._start_worker),
            load_error=package.load_error,
            quarantine=CATALOG,
        )
        lane = Lane(model, runtime)
        self._lanes.put(lane)
        return lane

    async def _reference_figures(
        self, model: RegisteredModel, rows: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[float]]:
        # Imported here: numpy is only needed once a profile is checked.
        from synapse_host.certification.reference_figures import reference_figures

        return await reference_figures(self._start_worker, model, rows)

    def _bury(self, lane: Lane) -> None:
        self._tasks.start_soon(lane.close, name=f"close {lane.model.model_id}")

    @cached_property
    def _fixtures(self) -> Mapping[str, Fixture]:
        test_catalog = self._settings.paths.test_catalog
        if test_catalog is None:
            return shipped_fixtures()
        return parse_fixtures(json.loads(test_catalog.with_name(FIXTURES_FILE).read_text("utf-8")))


def host_catalog(settings: Settings) -> Catalog:
    """The catalog of this host: shipped rows and those the settings switch on. An injected one has them all.

    Raises:
        StartRefused: the document cannot be read or breaks a rule.

    """
    injected = settings.paths.test_catalog
    if injected is None:
        return read_catalog().with_backends(settings.catalog.backends)
    log.warning("serving the test catalog %s (SYNAPSE_TEST_CATALOG) in the place of the shipped one", injected)
    switched_on = set(settings.catalog.backends) & set(CATALOG_BACKENDS)
    return read_catalog(injected, backend_ids=(*CATALOG_BACKENDS, *_own_backends(injected))).with_backends(switched_on)


def _own_backends(document: Path) -> list[str]:
    try:
        return sorted(set(json.loads(document.read_text("utf-8"))["engines"]) - set(CATALOG_BACKENDS))
    except (OSError, ValueError, KeyError, TypeError):
        return []  # reading it says what is wrong with it
