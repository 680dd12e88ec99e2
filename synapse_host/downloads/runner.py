"""Carries one download out: look what is here, fetch the rest, verify, publish, and end exactly once.

The order of the steps is what a crash at any point depends on. Content is pinned by the job when it enters the cache,
by the install before the store says that it is installed, and loses the job's pin after. A boot takes back what the
store does not vouch for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread

from synapse_host.cache import pin_owners
from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.failures import storage_failure
from synapse_host.downloads.installs import Install, InstallMember, Installs
from synapse_host.downloads.job import DownloadJob, DownloadState
from synapse_host.downloads.job_pins import pin_install, pin_present, release_install, release_job
from synapse_host.downloads.manifest import WantedFile
from synapse_host.downloads.seams import FileSource, JobCounts
from synapse_host.downloads.verification import ContentVerifier
from synapse_host.errors import ArtifactInvalid, EngineCrashed, InvalidRequest, StoreFailure, SynapseError
from synapse_host.store.download_store import DownloadStore
from synapse_host.store.download_tables import InstallMemberRow, InstallRow
from synapse_host.values import value_object

_log = logging.getLogger(__name__)

#: How long content over the limit stays marked before a later download removes it.
TRIM_GRACE_MS = 60_000


@dataclass(slots=True)
class ActiveDownload:
    """A job with the task that carries it out: cancelled by its scope, ``over`` once its end is recorded."""

    job: DownloadJob
    started_s: float
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: anyio.Event = field(default_factory=anyio.Event)
    #: False where the end could not be written to the store.
    recorded: bool = True


@value_object
class Runner:
    """What every job is carried out with. ``clock`` counts seconds, ``now_ms`` milliseconds of the epoch."""

    cache: BlobCache
    source: FileSource
    store: DownloadStore
    installs: Installs
    verifier: ContentVerifier
    counts: JobCounts
    now_ms: Callable[[], int]
    clock: Callable[[], float]
    max_bytes: int

    async def run(self, active: ActiveDownload) -> None:
        """From queued to the end; raises nothing but the cancellation of a host that stops."""
        error: SynapseError | None = None
        try:
            with active.scope:
                await self._work(active.job)
        except StoreFailure as failure:
            error = storage_failure(active.job.manifest.files[0].name, failure)
        except SynapseError as refusal:
            error = refusal
        except Exception as fault:
            error = _host_fault(active.job, fault)
        with anyio.CancelScope(shield=True):
            await self._finish(active, error)

    async def trim(self) -> None:
        """Mark what nobody pins where the cache is larger than it may be, and remove what was marked before."""

        def trim() -> None:
            for digest in self.cache.over_watermark(self.max_bytes):
                # Whoever shares the cache may have given it up since.
                with suppress(InvalidRequest):
                    self.cache.collect(now_ms=self.now_ms(), grace_ms=TRIM_GRACE_MS, digest=digest)

        try:
            await anyio.to_thread.run_sync(trim)
        except StoreFailure as failure:
            _log.warning("the model cache was not trimmed: %s", failure.message)

    async def _work(self, job: DownloadJob) -> None:
        missing = await self._missing(job)
        if missing:
            job.start(sum(wanted.size or 0 for wanted in missing))
            for wanted in missing:
                await self.source.fetch(
                    wanted,
                    owner=pin_owners.download_owner(self.cache.owner, job.job_id),
                    on_bytes=partial(job.received, wanted.sha256),
                )
                await self.verifier.note(wanted.sha256)
            job.verify()
            for wanted in job.manifest.files:
                await self.verifier.require(wanted.name, wanted.sha256, wanted.size)
        if job.claim(DownloadState.COMMITTED):
            with anyio.CancelScope(shield=True):
                await self._publish(job)

    async def _missing(self, job: DownloadJob) -> list[WantedFile]:
        """The files whose content is not here and whole, each content once; the rest is pinned by the job."""
        missing = []
        for wanted in {wanted.sha256: wanted for wanted in job.manifest.files}.values():
            present = await anyio.to_thread.run_sync(pin_present, self.cache, job.job_id, wanted)
            if not present or not await self._is_whole(wanted):
                missing.append(wanted)
        return missing

    async def _is_whole(self, wanted: WantedFile) -> bool:
        try:
            await self.verifier.require(wanted.name, wanted.sha256, wanted.size)
        except ArtifactInvalid as damaged:
            _log.warning("%s; fetching it again", damaged.message)
            return False
        return True

    async def _publish(self, job: DownloadJob) -> None:
        manifest = job.manifest
        members = await anyio.to_thread.run_sync(pin_install, self.cache, manifest)
        before = self.installs.current(manifest.catalog_id, manifest.manifest_digest)
        members = _joined(before, members)
        install = Install(
            manifest.catalog_id,
            manifest.manifest_digest,
            {member.name: member for member in members},
            installed_ms=self.now_ms(),
        )
        committed = await self.store.commit(job.job_id, install.installed_ms, *_rows(install))
        assert committed, f"{job.job_id} was claimed and yet had ended in the store"
        self.installs.put(install)
        await anyio.to_thread.run_sync(self._settle_pins, job, before, install)
        # Told last: whoever reads it may remove the entry, and nothing of the job stands in the way.
        job.end(DownloadState.COMMITTED)

    def _settle_pins(self, job: DownloadJob, before: Install | None, install: Install) -> None:
        """The install holds its content now; a slip here is put right by the next boot."""
        try:
            release_job(self.cache, job.job_id, _digests(job), remove=False)
            if before is not None:
                release_install(self.cache, before, keep={member.sha256 for member in install.members.values()})
        except StoreFailure as failure:
            _log.warning("download %s keeps pins until the host starts again: %s", job.job_id, failure.message)

    async def _finish(self, active: ActiveDownload, error: SynapseError | None) -> None:
        """Bring a job that has not committed to its end, clean up and record it; then let everybody know."""
        job = active.job
        try:
            if not job.ended:
                await self._end(active, error)
            self.counts.ended(completed=job.state is DownloadState.COMMITTED)
            _log_end(active, self.clock() - active.started_s)
        finally:
            active.over.set()

    async def _end(self, active: ActiveDownload, error: SynapseError | None) -> None:
        job = active.job
        if error is not None:
            job.claim(DownloadState.FAILED)
        failed = error is not None and job.claimed is not DownloadState.CANCELLED
        wire = error.to_wire() if error is not None and failed else None
        await anyio.to_thread.run_sync(self._clean_up, job)
        try:
            active.recorded = await self.store.end(
                job.job_id, self.now_ms(), error_json=json.dumps(wire) if wire else None
            )
        except StoreFailure as failure:
            active.recorded = False
            _log.error("the end of download %s could not be kept: %s", job.job_id, failure.message)
        job.end(DownloadState.FAILED if failed else DownloadState.CANCELLED, wire)

    def _clean_up(self, job: DownloadJob) -> None:
        try:
            release_job(self.cache, job.job_id, _digests(job), remove=True)
            manifest = job.manifest
            if self.installs.current(manifest.catalog_id, manifest.manifest_digest) is None:
                members = {file.name: InstallMember(file.role, file.name, file.sha256, 0) for file in manifest.files}
                release_install(self.cache, Install(manifest.catalog_id, manifest.manifest_digest, members))
        except StoreFailure as failure:
            _log.warning("download %s leaves content until the host starts again: %s", job.job_id, failure.message)


def _joined(before: Install | None, members: list[InstallMember]) -> list[InstallMember]:
    """The new members, and those of a whole install before that only other backends need."""
    if before is None or not before.valid:
        return members
    return list({**before.members, **{member.name: member for member in members}}.values())


def _rows(install: Install) -> tuple[InstallRow, list[InstallMemberRow]]:
    catalog_id, manifest_digest = install.catalog_id, install.manifest_digest
    members = [
        InstallMemberRow(
            catalog_id=catalog_id,
            manifest_digest=manifest_digest,
            role=member.role,
            name=member.name,
            sha256=member.sha256,
            size=member.size,
        )
        for member in install.members.values()
    ]
    row = InstallRow(catalog_id=catalog_id, manifest_digest=manifest_digest, installed_ms=install.installed_ms)
    return row, members


def _digests(job: DownloadJob) -> list[str]:
    return [wanted.sha256 for wanted in job.manifest.files]


def _host_fault(job: DownloadJob, fault: Exception) -> SynapseError:
    _log.error("download %s failed inside the host", job.job_id, exc_info=fault)
    return EngineCrashed(
        f"download {job.job_id!r} failed inside the host: {fault!r}; report it with the host's log",
        details={"reason": "host_fault"},
        error_class="permanent",
    )


def _log_end(active: ActiveDownload, seconds: float) -> None:
    """The one closing line of a job."""
    job = active.job
    code = f", {job.error['code']}: {job.error['message']}" if job.error else ""
    _log.info(
        "download %s of %s %s after %.1f s, %d bytes fetched%s",
        job.job_id,
        job.manifest.catalog_id,
        job.state,
        seconds,
        job.bytes_done,
        code,
    )
