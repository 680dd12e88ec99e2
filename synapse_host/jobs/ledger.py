"""The book of durable jobs: carries transactions out, counts them, and writes one log line when a job closes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from itertools import count

from sqlmodel import Session

from synapse_host.errors import SynapseError
from synapse_host.jobs import endings, transactions
from synapse_host.jobs.clocks import ClockLengths
from synapse_host.jobs.counters import JobCounters
from synapse_host.jobs.job_reader import JobExcerpt, known_job, open_under, read_excerpt
from synapse_host.jobs.job_state import JobEvent, JobState, failure_event
from synapse_host.jobs.open_jobs import OpenJobs
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.jobs.pages import Page
from synapse_host.jobs.submission import Submission
from synapse_host.jobs.transactions import Admission, Opening
from synapse_host.store import job_store
from synapse_host.store.database import Store
from synapse_host.store.job_tables import JobRow

_log = logging.getLogger(__name__)
#: Jobs of an earlier host that are ended in one transaction: thousands of them must not keep a host from starting.
RESTARTED_AT_ONCE = 64


class JobLedger:
    """Durable jobs of one host. Every method raises ``StoreFailure`` when the store cannot do it.

    ``now_ms`` is the time of day in milliseconds; the clocks of jobs outlive the process.
    """

    def __init__(
        self,
        store: Store,
        counters: JobCounters,
        *,
        module_generation: int,
        now_ms: Callable[[], int],
        lengths: ClockLengths | None = None,
        most_open: int = 4096,
    ) -> None:
        self.counters = counters
        #: Jobs admitted here that have not ended.
        self.open = OpenJobs()
        self.module_generation = module_generation
        self.now_ms = now_ms
        self._store = store
        self._lengths = lengths or ClockLengths()
        self._most_open = most_open
        self._numbers = count(1)

    async def admit(self, submission: Submission) -> Admission:
        """The job of a submission: the one its key names, or a new one.

        Raises:
            IdempotencyConflict: the key is bound to other content.
            QueueFull: as many jobs are open as may.

        """
        opening = Opening(
            f"embed-{self.module_generation}-{next(self._numbers)}",
            self.module_generation,
            self._lengths,
            self.now_ms(),
            self._most_open,
        )
        admission = await self._store.run(lambda session: transactions.admit(session, submission, opening), large=True)
        if admission.fresh:
            self.counters.admitted()
            self.open.admitted(admission.job.job_id, admission.job.model_id)
        return admission

    async def claim(self, job_pk: int) -> JobRow | None:
        """Take a queued job to carry it out; None, and ended where its time is up, when it is not to be had."""
        now_ms = self.now_ms()
        job = await self._store.run(lambda session: transactions.claim(session, job_pk, self.module_generation, now_ms))
        if job is None:
            await self.expire()
        return job

    async def inputs(self, job_pk: int, chunk_no: int) -> bytes | None:
        """One chunk of the texts of an open job; None past the last."""
        return await self._store.read(lambda session: job_store.input_chunk(session, job_pk, chunk_no))

    async def commit_page(self, job_pk: int, page: Page) -> JobRow:
        """Make a page observable, and the checkpoints of its items with it."""
        now_ms = self.now_ms()
        return await self._store.run(lambda session: transactions.commit_page(session, job_pk, page, now_ms))

    async def finish(self, job_pk: int) -> None:
        """End a job that has all its vectors."""
        now_ms = self.now_ms()
        self._closed(await self._store.run(lambda session: transactions.finish(session, job_pk, now_ms)), now_ms)

    async def fail(self, job_pk: int, error: SynapseError, event: JobEvent | None = None) -> None:
        """End a job with ``error``, in the failed state its class says unless ``event`` says another."""
        now_ms, what = self.now_ms(), event or failure_event(error.error_class)
        job = await self._store.run(lambda session: transactions.fail(session, job_pk, what, error, now_ms))
        if job is not None:
            self._closed(job, now_ms, error)

    async def cancel(self, job_id: str) -> JobRow:
        """End a queued or paused job because it is wanted no more; one that has ended or is carried out stays as it is.

        Raises:
            InvalidRequest: there is no such job.

        """
        now_ms = self.now_ms()

        def work(session: Session) -> tuple[JobRow, bool]:
            job = known_job(session, job_id)
            idle = job.state in (JobState.QUEUED, JobState.PAUSED)
            if idle:
                transactions.cancel(session, job, now_ms)
            return job, idle

        job, ended = await self._store.run(work)
        if ended:
            self._closed(job, now_ms)
        return job

    async def cancel_running(self, job_pk: int) -> None:
        """End a job that nobody carries out any more because it is wanted no more; one that has ended stays so."""
        now_ms = self.now_ms()

        def work(session: Session) -> JobRow | None:
            job = session.get(JobRow, job_pk)
            if job is None or JobState(job.state).terminal:
                return None
            transactions.cancel(session, job, now_ms)
            return job

        job = await self._store.run(work)
        if job is not None:
            self._closed(job, now_ms)

    async def pause(self, job_pk: int, logical_handle: str) -> JobRow:
        """Let a job wait for a login of ``logical_handle``."""
        now_ms, resume_ms = self.now_ms(), self._lengths.resume_ms
        return await self._store.run(
            lambda session: transactions.pause(session, job_pk, logical_handle, resume_ms, now_ms)
        )

    async def resume(self, job_id: str) -> tuple[JobRow, bool]:
        """Queue a paused job again, and whether it was paused; any other stays as it is (reading 30).

        Raises:
            InvalidRequest: there is no such job.

        """
        now_ms = self.now_ms()

        def work(session: Session) -> tuple[JobRow, bool]:
            job = known_job(session, job_id)
            paused = job.state == JobState.PAUSED and not transactions.clocks_of(job).login_over(now_ms)
            if paused:
                transactions.go_on(job, now_ms)
            return job, paused

        return await self._store.run(work)

    async def job(self, job_id: str) -> JobRow:
        """The job of this id; raises ``InvalidRequest`` for one that is unknown or was forgotten."""
        return await self._store.read(lambda session: known_job(session, job_id))

    async def find(self, job_id: str) -> JobRow | None:
        """The job of this id, if there is one."""
        return await self._store.read(lambda session: job_store.job_by_id(session, job_id))

    async def open_under(self, request_key: str) -> list[JobRow]:
        """The open jobs of a key and of the parts of its work (reading 14), the newest first.

        Raises:
            InvalidRequest: no job has or had this key.

        """
        return await self._store.read(lambda session: open_under(session, request_key))

    async def newest(self, most: int) -> list[JobRow]:
        """The jobs admitted last, the newest first."""
        return await self._store.read(lambda session: job_store.newest_jobs(session, most))

    async def excerpt(self, job_id: str, cursor: PageCursor, max_bytes: int) -> JobExcerpt:
        """Committed rows of a job; raises ``InvalidRequest`` as ``read_excerpt`` does."""
        return await self._store.read(lambda session: read_excerpt(session, job_id, cursor, max_bytes))

    async def open_by_state(self) -> dict[str, int]:
        """How many open jobs the store holds in each state."""
        return await self._store.read(job_store.open_by_state)

    # --- ends that no executor brings about ---------------------------------------------------------------------

    async def reconcile(self, cancelled: Collection[str] = ()) -> int:
        """End what earlier hosts left open, at boot; how many jobs that was.

        ``cancelled`` are those that were wanted no more, which their host could not write down.
        """
        left = await self._store.read(lambda session: endings.of_earlier_hosts(session, self.module_generation))
        now_ms = self.now_ms()
        for first in range(0, len(left), RESTARTED_AT_ONCE):
            some = left[first : first + RESTARTED_AT_ONCE]
            end = partial(endings.end_restarted, job_pks=some, now_ms=now_ms, cancelled=cancelled)
            for job in await self._store.run(end):
                self._closed(job, now_ms, None if job.state == JobState.CANCELLED else "module_restarted")
        return len(left)

    async def expire(self) -> None:
        """End the queued and paused jobs whose clocks ran out."""
        now_ms = self.now_ms()
        for job_pk, event, error in await self._store.read(lambda session: endings.expired(session, now_ms)):
            await self.fail(job_pk, error, event)

    async def sweep(self) -> int:
        """Expire, then forget the results that were kept long enough; how many jobs were forgotten.

        Where that frees much of the file and nobody works, the disk gets it back. A store that could not be written is
        tried first, so that it is known when it can be.
        """
        await self._store.try_again()
        await self.expire()
        now_ms = self.now_ms()
        over = await self._store.read(lambda session: endings.results_over(session, now_ms))
        for job_pk in over:
            await self._store.run(partial(endings.forget, job_pk=job_pk))
        if over and not await self.open_by_state():
            await self._store.vacuum()
        return len(over)

    def _closed(self, job: JobRow, now_ms: int, error: SynapseError | str | None = None) -> None:
        self.open.ended(job.job_id)
        inherited = job.module_generation < self.module_generation
        self.counters.ended(completed=job.state == JobState.DONE, inherited=inherited)
        code = error if isinstance(error, str) or error is None else error.code
        _log.log(
            logging.INFO if error is None else logging.WARNING,
            "job %s of model %r closed as %s%s after %.1f s: %d of %d items in %d pages, request_key %r",
            job.job_id,
            job.model_id,
            job.state,
            f" ({code})" if code else "",
            (now_ms - job.created_ms) / 1000,
            job.items_done,
            job.item_count,
            job.page_count,
            job.request_key,
        )
