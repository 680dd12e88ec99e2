"""The downloads room put together: cache, store and network behind the few things other rooms ask of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.cache.host_records import HostClaim, claim_host
from synapse_host.cache.layout import CacheLayout, is_unwritable, unusable
from synapse_host.downloads.download_jobs import DownloadJobs, JobRules
from synapse_host.downloads.fetcher import Fetcher
from synapse_host.downloads.installs import Installs
from synapse_host.downloads.job_pins import repin
from synapse_host.downloads.removal import Removal
from synapse_host.downloads.runner import Runner
from synapse_host.downloads.seams import FileSource, HolderSource, JobCounts
from synapse_host.downloads.sources import Sources
from synapse_host.downloads.verification import ContentVerifier
from synapse_host.errors import StoreFailure
from synapse_host.store.database import Store
from synapse_host.store.download_store import DownloadStore
from synapse_host.store.install_store import InstallStore
from synapse_host.store.module_store import ModuleStore
from synapse_host.values import value_object

_log = logging.getLogger(__name__)


@value_object
class RoomPlan:
    """What a room is made of. ``host_id`` names this host's pins; ``max_bytes`` is what the cache may grow to."""

    store: Store
    cache_root: Path
    host_id: str
    module_generation: int
    sources: Sources
    counts: JobCounts
    tasks: TaskGroup
    now_ms: Callable[[], int]
    retention_ms: int
    max_bytes: int
    clock: Callable[[], float] = time.monotonic


class DownloadRoom:
    """Installs, their content, and the jobs that bring both."""

    def __init__(self, plan: RoomPlan, source: FileSource | None = None) -> None:
        self.installs = Installs()
        self.cache = BlobCache(CacheLayout(plan.cache_root), plan.host_id)
        self._fetcher = Fetcher(self.cache, plan.sources)
        #: Fetches single files, for whoever needs one outside the catalog.
        self.source: FileSource = source or self._fetcher
        self._stored = InstallStore(plan.store)
        self._downloads = DownloadStore(plan.store)
        self.verifier = ContentVerifier(self.cache, self._stored, self.installs, plan.now_ms)
        runner = Runner(
            cache=self.cache,
            source=self.source,
            store=self._downloads,
            installs=self.installs,
            verifier=self.verifier,
            counts=plan.counts,
            now_ms=plan.now_ms,
            clock=plan.clock,
            max_bytes=plan.max_bytes,
        )
        rules = JobRules(plan.module_generation, plan.retention_ms, plan.tasks, plan.now_ms, plan.clock)
        self.jobs = DownloadJobs(runner, rules)
        self._modules, self._home, self._now_ms = ModuleStore(plan.store), plan.store.path.parent, plan.now_ms
        self._claim: HostClaim | None = None
        self._models: Collection[str] | None = None
        self._usable = False
        self._pins_are_put_right = anyio.Lock()

    async def start(self, models: Collection[str] | None = None) -> None:
        """Take up what an earlier process left: installs, open jobs, pins. Before any request.

        ``models`` are the ids of the registered models, whose pins stay; None leaves the pins of all models alone. A
        cache that cannot be used now stops nothing: whatever needs it says so.

        Raises:
            StoreFailure: the store cannot be read or written.

        """
        await self.jobs.reconcile(self._stored)
        self._models = models
        try:
            await self.require_cache(to_write=False)
        except StoreFailure as failure:
            _log.error("%s", failure.message)
        if not self.cache.writable:
            _log.warning(
                "the model cache at %s cannot be written: what is in it is served, and nothing is fetched, kept or "
                "removed",
                self.cache.layout.root,
            )

    async def require_cache(self, *, to_write: bool = True) -> None:
        """See that the cache can be used, and once make its pins what the store says; raises ``StoreFailure``.

        Without ``to_write`` one that can only be read will do: there is no pin of this host to take back from it.
        """
        try:
            await anyio.to_thread.run_sync(self.cache.layout.prepare)
        except StoreFailure as failure:
            self.cache.writable = not is_unwritable(failure)
            if to_write or self.cache.writable:
                raise
            await anyio.to_thread.run_sync(self.cache.layout.digests)
            return
        self.cache.writable = True
        if self._usable:
            return
        # Once only: later, jobs run whose pins the store does not vouch for yet.
        async with self._pins_are_put_right:
            if not self._usable:
                await self._claim_name()
                try:
                    await anyio.to_thread.run_sync(repin, self.cache, self.installs, self._models)
                except OSError as problem:
                    raise unusable(self.cache.layout.root, problem) from problem
                self._usable = True

    async def _claim_name(self) -> None:
        """Pin under this host's own name alone: a copy of another host has that one's."""
        if self._claim is None:
            claim = partial(claim_host, self.cache.layout, self.cache.owner, self._home, now_ms=self._now_ms())
            self._claim = await anyio.to_thread.run_sync(claim)
        if self._claim.host != self.cache.owner:
            _log.warning(
                "this home is a copy of that of host %s, which has pins in the model cache at %s; this is host %s now",
                self.cache.owner,
                self.cache.layout.root,
                self._claim.host,
            )
            await self._modules.take_host_id(self._claim.host)
            self.cache.owner = self._claim.host

    def removal(self, holders: Sequence[HolderSource]) -> Removal:
        """Removes entries that neither ``holders`` nor a download hold."""
        ready = partial(self.require_cache, to_write=False)
        return Removal(self.cache, self._downloads, self.installs, [*holders, self.jobs], ready)

    def close(self) -> None:
        """For the end of the event loop."""
        self._fetcher.close()
        if self._claim is not None:
            self._claim.release()
            self._claim = None
