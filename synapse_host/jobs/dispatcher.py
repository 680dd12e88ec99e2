"""Which job runs next: one at a time on each lane, in the order of admission. What stops it, and what keeps order.

Bulk work of two jobs on one lane would only take turns with itself; one after the other, the first is done sooner and
nothing is later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import anyio
from anyio.abc import TaskGroup

from synapse_host.errors import StoreFailure, SynapseError
from synapse_host.jobs.endings import too_late
from synapse_host.jobs.job_lane import ServingLane
from synapse_host.jobs.job_state import JobEvent, JobState
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.jobs.runner import JobRunner
from synapse_host.lanes.host_fault import host_fault
from synapse_host.store.cancel_notes import CancelNotes
from synapse_host.store.job_tables import JobRow
from synapse_host.values import value_object

_log = logging.getLogger(__name__)

#: How a job was carried out: to its end, to an error, or until it was stopped.
_Outcome = SynapseError | Literal[JobEvent.FINISHED, JobEvent.CANCELLED]


class _Queued(NamedTuple):
    job_pk: int
    job_id: str


@value_object
class _Unwritten:
    """An end that is decided and could not be written down."""

    outcome: _Outcome
    failure: StoreFailure
    #: The id of a cancelled job that was noted beside the store.
    noted: str | None = None

    def to_error(self) -> StoreFailure:
        """Why its job is open still, for whoever asks about it."""
        if self.outcome is not JobEvent.CANCELLED:
            return self.failure
        then = "which is noted for a host started later" if self.noted else "which a host that ends before forgets"
        return StoreFailure(
            f"it is cancelled, {then}, and is written down when the store can be written: {self.failure.message}",
            details={"ends_as": str(JobState.CANCELLED), "outlives_the_host": self.noted is not None},
        )


class _Hand:
    """The hand that carries out one job, and can be told to put it down."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.empty = anyio.Event()


class JobDispatcher:
    """Carries out the jobs of a ledger in ``tasks``."""

    def __init__(
        self,
        ledger: JobLedger,
        notes: CancelNotes,
        serving_lane: ServingLane,
        tasks: TaskGroup,
        *,
        clock: Callable[[], float],
        limits: PageLimits | None = None,
    ) -> None:
        self._ledger = ledger
        self._notes = notes
        self._serving_lane = serving_lane
        self._tasks = tasks
        self._clock = clock
        self._limits = limits or PageLimits()
        self._queues: dict[str, deque[_Queued]] = {}
        self._unwritten: dict[int, _Unwritten] = {}
        #: Jobs whose turn has come and that could not be written down as taken.
        self._unclaimed: dict[int, StoreFailure] = {}
        self._try_again = anyio.Event()
        self._hands: dict[int, _Hand] = {}

    def enqueue(self, job: JobRow) -> None:
        """Carry out a queued job when those before it on its lane are done."""
        assert job.job_pk is not None, "an admitted job is stored"
        waiting = self._queues.get(job.model_id)
        if waiting is None:
            self._queues[job.model_id] = waiting = deque()
            self._tasks.start_soon(self._drain, job.model_id, waiting, name=f"jobs of {job.model_id}")
        waiting.append(_Queued(job.job_pk, job.job_id))
        self._store_may_be_written()

    async def cancel(self, job_id: str) -> JobRow:
        """End a job that is wanted no more, and its row then; one that has ended stays as it is.

        One that is carried out commits what is computed before it ends. It may be done before it is stopped: exactly
        one end wins. Where the end cannot be written down now, it is kept in mind and noted beside the store: nobody
        carries the job out any more, and it ends when the store can be written, by this host or the next.

        Raises:
            InvalidRequest: there is no such job.
            StoreFailure: the store cannot even be read.

        """
        failure: StoreFailure | None = None
        try:
            job = await self._ledger.cancel(job_id)
        except StoreFailure as refused:
            failure, job = refused, await self._ledger.job(job_id)
        assert job.job_pk is not None, "a job that was found is stored"
        if JobState(job.state).terminal:
            self._store_may_be_written()
            return job
        if failure is not None:
            self._unwritten[job.job_pk] = _Unwritten(JobEvent.CANCELLED, failure)
        await self._put_down(job.job_pk)
        await self._note(job.job_pk, job_id)
        return await self._ledger.job(job_id)

    async def _put_down(self, job_pk: int) -> None:
        hand = self._hands.get(job_pk)
        if hand is not None:
            hand.scope.cancel()
            await hand.empty.wait()
        unwritten = self._unwritten.get(job_pk)
        if unwritten is not None and unwritten.outcome is not JobEvent.FINISHED:
            # It was to fail, and who waits for it would hand it in again.
            self._unwritten[job_pk] = _Unwritten(JobEvent.CANCELLED, unwritten.failure)

    async def _note(self, job_pk: int, job_id: str) -> None:
        unwritten = self._unwritten.get(job_pk)
        if unwritten is None or unwritten.outcome is not JobEvent.CANCELLED:
            return
        noted = await self._notes.add(job_id)
        # It may have been ended meanwhile. The note says nothing of a job that has ended.
        if noted and job_pk in self._unwritten:
            self._unwritten[job_pk] = replace(unwritten, noted=job_id)

    def held_up_by(self, job: JobRow) -> SynapseError | None:
        """Why a job could not be ended, or begun, though it is time, which only this process knows."""
        assert job.job_pk is not None, "a job that is shown is stored"
        unwritten = self._unwritten.get(job.job_pk)
        return self._unclaimed.get(job.job_pk) if unwritten is None else unwritten.to_error()

    async def keep_order(self, interval_s: float) -> None:
        """Every so often end what is due and forget what was kept long enough."""
        while True:
            await anyio.sleep(interval_s)
            try:
                await self.settle()
            except StoreFailure as failure:
                _log.warning("jobs could not be swept, which is tried again: %s", failure.message)

    async def settle(self) -> int:
        """End and begin the jobs that could not be when they should have been, and sweep; how many were forgotten."""
        self._store_may_be_written()
        for job_pk, unwritten in list(self._unwritten.items()):
            await self._end(job_pk, unwritten.outcome)
            del self._unwritten[job_pk]
            if unwritten.noted is not None:
                await self._notes.drop(unwritten.noted)
        return await self._ledger.sweep()

    def _store_may_be_written(self) -> None:
        self._try_again.set()
        self._try_again = anyio.Event()

    async def _drain(self, model_id: str, waiting: deque[_Queued]) -> None:
        try:
            while waiting:
                await self._carry_out(*waiting.popleft())
        finally:
            del self._queues[model_id]

    async def _carry_out(self, job_pk: int, job_id: str) -> None:
        if job_pk in self._unwritten:
            return
        # There before the job is claimed: a job that shows as running can be stopped.
        hand = self._hands[job_pk] = _Hand()
        outcome: _Outcome | None = JobEvent.CANCELLED
        try:
            with hand.scope:
                outcome = await self._outcome(await self._claimed(job_pk, job_id))
            if outcome is not None:
                await self._end(job_pk, outcome)
        except StoreFailure as failure:
            assert outcome is not None, "nothing is written of a job that was not to be had"
            _log.error("job %s cannot be ended in the store now, which is tried again: %s", job_id, failure.message)
            self._unwritten[job_pk] = _Unwritten(outcome, failure)
        finally:
            del self._hands[job_pk]
            hand.empty.set()

    async def _claimed(self, job_pk: int, job_id: str) -> JobRow | None:
        """A job whose turn has come, written down as taken, however long that takes; None where it is not to be had."""
        try:
            while True:
                try_again = self._try_again
                try:
                    return await self._ledger.claim(job_pk)
                except StoreFailure as failure:
                    if job_pk not in self._unclaimed:
                        _log.error(
                            "job %s cannot be begun, as the store cannot be written: %s", job_id, failure.message
                        )
                    self._unclaimed[job_pk] = failure
                await try_again.wait()
        finally:
            self._unclaimed.pop(job_pk, None)

    async def _outcome(self, job: JobRow | None) -> _Outcome | None:
        """Carry out a claimed job; None where there is none."""
        if job is None:
            return None
        remaining_s = max(0, job.execution_expires_ms - self._ledger.now_ms()) / 1000
        try:
            with anyio.move_on_after(remaining_s):
                await JobRunner(self._ledger, job, self._serving_lane, self._limits, self._clock).run()
                return JobEvent.FINISHED
        except SynapseError as error:
            return error
        except Exception as fault:
            return host_fault(f"job {job.job_id!r}", fault)
        return too_late(job)

    async def _end(self, job_pk: int, outcome: _Outcome) -> None:
        if outcome is JobEvent.FINISHED:
            await self._ledger.finish(job_pk)
        elif outcome is JobEvent.CANCELLED:
            await self._ledger.cancel_running(job_pk)
        else:
            event = JobEvent.FAILED_TRANSIENTLY if isinstance(outcome, StoreFailure) else None
            await self._ledger.fail(job_pk, outcome, event)
