"""The download jobs of a host: asked for, shared, cancelled, polled; and what a boot makes of those before it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.downloads.job import DownloadJob, DownloadState, flat_status
from synapse_host.downloads.manifest import Manifest
from synapse_host.downloads.runner import ActiveDownload, Runner
from synapse_host.downloads.seams import DOWNLOAD_ID, Holder
from synapse_host.downloads.stored_installs import install_of
from synapse_host.errors import InvalidRequest, ModuleRestarted
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.store.download_tables import DownloadKeyRow, DownloadRow
from synapse_host.store.install_store import InstallStore
from synapse_host.values import value_object

JOB_KIND = "models.download"


@value_object
class JobRules:
    """What the jobs are given from outside; ``retention_ms`` is how long an ended job can be asked for."""

    module_generation: int
    retention_ms: int
    tasks: TaskGroup
    now_ms: Callable[[], int]
    clock: Callable[[], float]


class DownloadJobs:
    """Every download of this process, and of earlier ones until they expire."""

    def __init__(self, runner: Runner, rules: JobRules) -> None:
        self._runner = runner
        self._rules = rules
        self._store = runner.store
        self._numbers = count(1)
        self._active: dict[str, ActiveDownload] = {}
        self._unrecorded: dict[str, ActiveDownload] = {}

    async def submit(self, manifest: Manifest, request_key: str | None) -> dict[str, Any]:
        """Start a download, or join or recall the one that answers the key already; its flat status.

        Raises:
            IdempotencyConflict: the key is bound to another manifest; details ``request_key``, ``job_id``.
            StoreFailure: the store or the cache cannot be read or written.

        """
        key = _key(request_key, manifest)
        complete = await anyio.to_thread.run_sync(self._is_complete, manifest)
        # From here on a caller that goes away must not leave a job that nobody carries out.
        with anyio.CancelScope(shield=True):
            status = await self._begin(manifest, key, complete)
        return status  # noqa: RET504 - a scope might swallow, says its type

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """End a job for every caller attached to it, unless it has ended; its flat status. Idempotent.

        Raises:
            InvalidRequest: there is no such job, or it expired; details ``job_id``.

        """
        active = self._active.get(job_id)
        if active is None:
            return await self.status(job_id)
        if active.job.claim(DownloadState.CANCELLED):
            active.scope.cancel()
        await active.over.wait()
        return active.job.status()

    async def ended(self, job_id: str) -> dict[str, Any]:
        """The flat status of a job once it has ended; raises what ``cancel`` raises."""
        active = self._active.get(job_id)
        if active is not None:
            await active.over.wait()
        return await self.status(job_id)

    async def status(self, job_id: str) -> dict[str, Any]:
        """The flat status of a job; raises what ``cancel`` raises."""
        found = await self.find(job_id)
        if found is None:
            raise _unknown(job_id)
        return found

    async def find(self, job_id: str) -> dict[str, Any] | None:
        """The flat status of a job, None where there is none of this id."""
        active = self._active.get(job_id) or self._unrecorded.get(job_id)
        if active is not None and not (active.job.ended and active.recorded):
            return active.job.status()
        row = await self._store.get(job_id, expired_ms=self._expired_ms())
        return None if row is None else _status_of(row)

    def open_job(self, catalog_id: str, manifest_digest: str) -> str | None:
        """The job that is downloading this manifest now (``download_job_id`` of ``model_not_installed``)."""
        for job in self._open():
            if (job.manifest.catalog_id, job.manifest.manifest_digest) == (catalog_id, manifest_digest):
                return job.job_id
        return None

    def holders(self, catalog_id: str) -> list[Holder]:
        """The downloads of an entry that have not ended, of whichever manifest."""
        return [Holder("job", job.job_id) for job in self._open() if job.manifest.catalog_id == catalog_id]

    async def reconcile(self, stored: InstallStore) -> None:
        """Read the installs, and fail what an earlier process left open (reading 5); for the boot, before any job."""
        for found in await stored.all():
            self._runner.installs.put(install_of(found))
        error = ModuleRestarted("the host restarted before the download ended; download again")
        rows = await self._store.fail_open(self._rules.now_ms(), json.dumps(error.to_wire()))
        for _ in rows:
            self._runner.counts.ended(completed=False, inherited=True)

    def _open(self) -> list[DownloadJob]:
        return [active.job for active in self._active.values() if not active.job.ended]

    async def _begin(self, manifest: Manifest, key: str, complete: bool) -> dict[str, Any]:
        rules = self._rules
        job_id = f"{DOWNLOAD_ID}{rules.module_generation}-{next(self._numbers)}"
        content = {"catalog_id": manifest.catalog_id, "manifest_digest": manifest.manifest_digest}
        fresh = DownloadRow(
            job_id=job_id,
            catalog_id=manifest.catalog_id,
            manifest_digest=manifest.manifest_digest,
            module_generation=rules.module_generation,
            state="open",
            created_ms=rules.now_ms(),
        )
        bound = DownloadKeyRow(request_key=key, request_digest=sha256_hex(canonical_json(content)), job_id=job_id)
        row = await self._store.begin(fresh, bound, complete=complete, expired_ms=self._expired_ms())
        if row.job_id == job_id:
            return self._start(DownloadJob(job_id, manifest))
        active = self._active.get(row.job_id)
        if active is not None:
            return active.job.status()
        if row.state != "open":
            return _status_of(row)
        await self._record_late(row.job_id)
        return await self._begin(manifest, key, complete)

    def _start(self, job: DownloadJob) -> dict[str, Any]:
        active = ActiveDownload(job, self._rules.clock())
        self._active[job.job_id] = active
        self._runner.counts.admitted()
        self._rules.tasks.start_soon(self._carry_out, active, name=job.job_id)
        return job.status()

    async def _carry_out(self, active: ActiveDownload) -> None:
        try:
            await self._runner.run(active)
        finally:
            del self._active[active.job.job_id]
            if not active.recorded:
                self._unrecorded[active.job.job_id] = active
        if active.job.state is DownloadState.COMMITTED:
            await self._runner.trim()

    async def _record_late(self, job_id: str) -> None:
        """Write the end of a job that could not be written when it ended, as on a full disk."""
        ended = self._unrecorded.get(job_id)
        error = ended.job.error if ended is not None else ModuleRestarted("the download ended unseen").to_wire()
        await self._store.end(job_id, self._rules.now_ms(), error_json=json.dumps(error) if error else None)
        self._unrecorded.pop(job_id, None)

    def _is_complete(self, manifest: Manifest) -> bool:
        """Whether the entry is installed with every file this manifest wants, of the right size."""
        install = self._runner.installs.current(manifest.catalog_id, manifest.manifest_digest)
        if install is None or not install.valid:
            return False
        held = {member.sha256 for member in install.members.values()}
        return all(file.sha256 in held and self._is_present(file.sha256, file.size) for file in manifest.files)

    def _is_present(self, sha256: str, size: int | None) -> bool:
        path = self._runner.cache.path(sha256)
        return self._runner.cache.find(sha256) is not None and size in (None, path.stat().st_size)

    def _expired_ms(self) -> int:
        return self._rules.now_ms() - self._rules.retention_ms


def _key(given: str | None, manifest: Manifest) -> str:
    """The request key; a blank one is none."""
    return (given or "").strip() or f"{JOB_KIND}:{manifest.catalog_id}:{manifest.manifest_digest}"


def _unknown(job_id: str) -> InvalidRequest:
    return InvalidRequest(
        f"no download job {job_id[:80]!r}; it is unknown or expired after it ended", details={"job_id": job_id[:256]}
    )


def _status_of(row: DownloadRow) -> dict[str, Any]:
    state = DownloadState.QUEUED if row.state == "open" else row.state
    return flat_status(row.job_id, state, json.loads(row.error_json) if row.error_json else None)
