"""Composition root: opens everything the host is made of inside one task group and closes it in reverse.

Nothing is decided here. Rooms are handed what they need, in the order of the walk a request takes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import Devices
from synapse_host.admission.gate import Gate
from synapse_host.admission.refusals import Refusals
from synapse_host.certification.alias_table import AliasTable
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_check import SelfCheckRow
from synapse_host.certification.stored_self_checks import check_of
from synapse_host.certification.stored_self_checks import row_of as check_row
from synapse_host.downloads.opening import open_room
from synapse_host.downloads.room import DownloadRoom
from synapse_host.errors import SynapseError
from synapse_host.host_catalog import HostCatalog
from synapse_host.host_jobs import HostJobs
from synapse_host.host_probes import HostProbes
from synapse_host.host_workers import HostWorkers
from synapse_host.identity.machine_profile import MachineProfile, read_machine_profile
from synapse_host.jobs.counters import JobCounters
from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.guarded_tasks import GuardedTasks
from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.lanes.health_refresh import HealthRefresh
from synapse_host.lanes.lane import LaneRuntime
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.neural_engine_models import on_neural_engine
from synapse_host.lanes.package_folders import PackageFolders
from synapse_host.lanes.pausing import PauseControl
from synapse_host.lanes.registrar import ModelRegistrar
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.models.stored_models import model_of, row_of
from synapse_host.operations.aliasing import AliasService, take_rows
from synapse_host.operations.caching import CachingService
from synapse_host.operations.constraints import BudgetRule, Constraints
from synapse_host.operations.embedding import EmbeddingService, InlineLimits
from synapse_host.operations.generation import GenerationLimits, GenerationService
from synapse_host.operations.job_lanes import JobLanes
from synapse_host.operations.lane_door import LaneDoor
from synapse_host.operations.lane_pausing import LanePausingService
from synapse_host.operations.loading import LoadingService
from synapse_host.operations.management_jobs import ManagementJobs
from synapse_host.operations.preloading import Preloads, refuse_reserved_preloads, with_profiles_of
from synapse_host.operations.probing import ProbingService
from synapse_host.operations.registry import Method, Registry
from synapse_host.operations.reranking import RerankingService
from synapse_host.operations.serving import ServingDesk
from synapse_host.operations.status import HostFacts, StatusService
from synapse_host.operations.tokenising import TokenisingPool
from synapse_host.server.listener import OpenConnections, serve_locked, sole_host
from synapse_host.server.singleton import make_private_directory
from synapse_host.settings import Settings
from synapse_host.socket_paths import worker_socket_folder
from synapse_host.store.database import Store
from synapse_host.store.stores import Stores
from synapse_host.supervision.output_log import OutputLog
from synapse_host.tokenization.pairs import LaneTokenizer

log = logging.getLogger("synapse_host")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Host:
    """The parts of one running host. Made by ``open_host``; serves by ``run_host``."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        machine: MachineProfile,
        generation: int,
        tasks: TaskGroup,
        jobs: TaskGroup,
        counters: JobCounters,
        downloads: DownloadRoom,
    ) -> None:
        self.settings = settings
        self.machine = machine
        self.module_generation = generation
        self.aliases = AliasTable()
        self.lanes = LaneTable()
        self.ledger = CertificationLedger(self.profile_hash)
        self.gate = Gate(byte_budget=settings.inline.byte_budget, clock=time.monotonic)
        lock = FileLock(settings.paths.neural_engine_lock)
        self.pauses = PauseControl(self.lanes, lock, tasks, now_ms=_now_ms, clock=time.monotonic)
        self._backends = BackendChoice(settings.paths.cache_dir, settings.of_backends)
        self.registrar = ModelRegistrar(
            self.lanes, self._backends, save=self._save_model, runtime=self._runtime, now_ms=_now_ms
        )
        self._stores = stores
        self.connections = OpenConnections()
        self._started_at = time.monotonic()
        self._health = HealthRefresh(self.lanes, settings.worker.ping_interval_s)
        self._output = OutputLog(time.monotonic, settings.log.worker_lines_per_s)
        self._devices = Devices()
        self.workers = HostWorkers(settings, self._backends, self.pauses, lock, self._devices, self._output, tasks)
        self._refusals = Refusals(_now_ms)
        self._tokenising = TokenisingPool()
        self.preloads: Preloads
        self._tasks = tasks
        self._jobs = jobs
        self._probes = HostProbes(
            settings,
            self.ledger,
            stores.certifications,
            self.workers.start,
            self.pauses.refuse,
            machine.os_build,
            generation,
            _now_ms,
        )
        self.counters = counters
        self.downloads = downloads
        self._packages = PackageFolders(downloads.cache.claim_derived, tasks, os_build=machine.os_build)
        self.catalog = HostCatalog(
            settings,
            self.lanes,
            downloads,
            runtime=self._runtime,
            start_worker=self.workers.start,
            save_check=self._save_check,
            tasks=tasks,
            os_build=machine.os_build,
        )
        self.jobs = HostJobs(
            settings,
            stores.store,
            counters,
            module_generation=generation,
            now_ms=_now_ms,
            lanes=JobLanes(self.lanes, self.ledger, self.catalog.checks, self.gate, self.pauses),
            aliases=self.aliases,
            tasks=jobs,
        )

    def profile_hash(self, model: RegisteredModel) -> str:
        """The machine profile a model is certified under: this machine and the model's own engine, no other's.

        Installing another backend must not take the certification of this one away.
        """
        return replace(self.machine, engine_identities=(model.engine,)).hash

    def registry(self) -> Registry:
        """Every method this host serves."""
        generation, settings = self.module_generation, self.settings
        budgets = BudgetRule(
            deadline_ms=settings.inline.deadline_ms, max_queue_ms=settings.inline.max_queue_ms, clock=time.monotonic
        )
        catalog = self.catalog
        door = LaneDoor(
            self.lanes, catalog.shelf, self.ledger, self.aliases, catalog.checks, self.pauses, time.monotonic
        )
        desk = ServingDesk(door, self.gate, self.aliases, budgets, generation, self._tokenising)
        loads = ManagementJobs(
            "model-load", module_generation=generation, tasks=self._jobs, most_running=settings.worker.max_loads
        )
        probes = ManagementJobs(
            "probe", module_generation=generation, tasks=self._jobs, most_running=settings.probe.max_jobs
        )
        durable = self.jobs.service
        loading = LoadingService(
            self.lanes,
            catalog.shelf,
            self.registrar,
            loads,
            self.downloads.jobs,
            catalog.fetching,
            generation,
            (durable.status_of,),
        )
        self.preloads = Preloads(Registry(loading.own_methods()), self.lanes, catalog.checks)
        services = (
            durable,
            EmbeddingService(
                desk,
                InlineLimits(settings.inline.max_items, settings.inline.max_tokens, settings.inline.max_text_chars),
                durable,
                settings.inline.byte_budget,
            ),
            RerankingService(desk, settings.inline.max_text_chars),
            GenerationService(
                desk,
                GenerationLimits(
                    settings.microllm.max_tokens, settings.microllm.grammar_enabled, settings.inline.max_text_chars
                ),
            ),
            loading,
            *catalog.services(self.ledger, self.aliases, self.pauses, self.jobs.ledger.open, generation),
            CachingService(self.downloads, _now_ms, generation),
            ProbingService(
                self.lanes,
                catalog.shelf,
                catalog.checks,
                self.ledger,
                probes,
                self._probes.run,
                self.machine,
                generation,
            ),
            LanePausingService(self.pauses, catalog.shelf.fill, generation, self.workers.residency),
            AliasService(
                self.aliases, self._stores.aliases, self.lanes, settings.aliases.admin_enabled, _now_ms, generation
            ),
            StatusService(
                self.lanes,
                self.ledger,
                catalog.checks,
                self.gate,
                self._devices,
                self._refusals,
                self.counters,
                durable.recent,
                self.machine,
                self._facts(),
                generation,
                lambda: self._stores.store.fault,
            ),
        )
        return Registry((method for service in services for method in service.methods()), self._note_refusal)

    async def restore(self) -> None:
        """Bring back what the store holds: registered models as unloaded lanes, their certifications, installs."""
        take_rows(self.aliases, await self._stores.aliases.all())
        stored = [model_of(row) for row in await self._stores.models.all()]
        models = with_profiles_of(self.catalog.restorable(stored), self.settings.preload.models)
        await self.downloads.start({model.model_id for model in models})
        for model in models:
            self.registrar.open_lane(model)
            await self._probes.restore(model)
        for check in await self._stores.checks.all():
            self.catalog.checks.restore(check_of(check))

    def _note_refusal(self, method: Method, refusal: SynapseError) -> None:
        if issubclass(method.params, Constraints):
            self._refusals.note(refusal.code)

    def watch_health(self) -> None:
        """Look at every worker now and then, from here on."""
        self._tasks.start_soon(self._health.run, name="worker health")

    def preload(self) -> None:
        """Give installed models their lanes and load what the settings name, from here on; neither stops the host."""
        self._jobs.start_soon(self.catalog.shelf.fill, name="lanes of the catalog")
        self._jobs.start_soon(self.preloads.run, self.settings.preload.models, name="preloads")

    async def close(self) -> None:
        """Stop every lane and its worker."""
        async with anyio.create_task_group() as closing:
            for lane in self.lanes:
                closing.start_soon(lane.close)
        self.downloads.close()
        self._tokenising.close()
        self._output.say_left_out()

    def _facts(self) -> HostFacts:
        return HostFacts(
            self._started_at,
            time.monotonic,
            lambda: self.connections.count,
            self.settings.server.max_connections,
            self.settings.inline.max_text_chars,
        )

    async def _save_check(self, check: SelfCheckRow) -> None:
        await self._stores.checks.save(check_row(check))

    async def _save_model(self, model: RegisteredModel) -> None:
        # Another identity may have had the id when this host started, so what was found of this one is not here yet.
        await self._probes.restore(model)
        await self._stores.models.save(row_of(model))

    def _runtime(self, model: RegisteredModel) -> LaneRuntime:
        return LaneRuntime(
            start_worker=self.workers.start,
            read_tokenizer=_read_tokenizer,
            turns=self._devices.of(model.device_class),
            tasks=self._tasks,
            clock=time.monotonic,
            threads=self.settings.worker.threads,
            estimate_ms=self.settings.inline.estimated_execution_ms,
            recycle_rss_mib=self.settings.worker.recycle_rss_mib,
            refuse_load=self.pauses.refuse,
            loaded=self._health.wake,
            shapes_of=self.workers.shapes_of,
            compiling=self.workers.compiling,
            packages=self._packages.of if on_neural_engine(model) else None,
        )


async def _read_tokenizer(model: RegisteredModel) -> LaneTokenizer:
    from synapse_host.models.model_preparation import read_tokenizer

    return await anyio.to_thread.run_sync(read_tokenizer, model)


def _guarded(tasks: TaskGroup) -> TaskGroup:
    # The rooms only ever start tasks; anyio lets nobody make a task group of one's own with that method.
    return cast(TaskGroup, GuardedTasks(tasks))


@asynccontextmanager
async def open_host(settings: Settings) -> AsyncIterator[Host]:
    """A host with its store open and its lanes restored; closed when the block ends.

    Raises:
        StoreFailure: the store cannot be opened.
        StartRefused: the folder of the workers' sockets cannot be made private.
        MachineProbeFailed: the machine profile cannot be read.

    """
    make_private_directory(worker_socket_folder(settings.paths.runtime_dir))
    machine = read_machine_profile((), os_build_override=None)
    store = Store.open(settings.paths.store_file)
    try:
        stores = Stores.of(store)
        generation = await stores.modules.begin_generation()
        async with anyio.create_task_group() as tasks:
            try:
                # Jobs end before the lanes they use: a probe must not take its lane's stop for a fault of the engine.
                async with anyio.create_task_group() as jobs:
                    counters = JobCounters()
                    downloads = await open_room(settings, store, counters, _guarded(jobs), _now_ms)
                    host = Host(
                        settings, stores, machine, generation, _guarded(tasks), _guarded(jobs), counters, downloads
                    )
                    refuse_reserved_preloads(settings.preload.models, host.catalog.catalog)
                    await host.restore()
                    await host.jobs.take_up()
                    host.watch_health()
                    try:
                        yield host
                    finally:
                        jobs.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await host.close()
                tasks.cancel_scope.cancel()
    finally:
        store.close()


async def run_host(settings: Settings, *, stop: anyio.Event, on_ready: Callable[[], None] | None = None) -> None:
    """Serve until ``stop`` is set, then drain and close.

    Raises:
        StartRefused: another host serves the runtime directory; nothing of it was touched.
        StoreFailure, MachineProbeFailed: see ``open_host``.

    """
    with sole_host(settings.paths):
        async with open_host(settings) as host:
            registry = host.registry()
            host.preload()
            log.info("host ready", extra={"pid": os.getpid(), "module_generation": host.module_generation})
            await serve_locked(
                settings,
                registry,
                module_generation=host.module_generation,
                on_ready=on_ready,
                stop=stop,
                connections=host.connections,
            )
