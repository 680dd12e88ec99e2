"""Which job runs next: one at a time on each lane, in the order of admission. What stops it, and what keeps order.

Bulk work of two jobs on one lane would only take turns with itself; one after the other, the first is done sooner and
nothing is later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
from synapse_host.store.job_tables import JobRow

_log = logging.getLogger(__name__)

#: How a job was carried out: to its end, to an error, or until it was stopped.
_Outcome = SynapseError | Literal[JobEvent.FINISHED, JobEvent.CANCELLED]


class _Queued(NamedTuple):
    job_pk: int
    job_id: str


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """An end that is decided and could not be written down."""

    outcome: _Outcome
    failure: StoreFailure

    def to_error(self) -> StoreFailure:
        """Why its job is open still, for whoever asks about it."""
        if self.outcome is not JobEvent.CANCELLED:
            return self.failure
        return StoreFailure(
            f"it is cancelled, which will be written down when the store can be written: {self.failure.message}",
            details={"ends_as": str(JobState.CANCELLED)},
        )


class _Hand:
    """The hand that carries out one job, and can be told to put it down."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.stopped = False
        self.empty = anyio.Event()

    def stop(self) -> None:
        """Compute no more of it."""
        self.stopped = True
        self.scope.cancel()


class JobDispatcher:
    """Carries out the jobs of a ledger in ``tasks``."""

    def __init__(
        self,
        ledger: JobLedger,
        serving_lane: ServingLane,
        tasks: TaskGroup,
        *,
        clock: Callable[[], float],
        limits: PageLimits | None = None,
    ) -> None:
        self._ledger = ledger
        self._serving_lane = serving_lane
        self._tasks = tasks
        self._clock = clock
        self._limits = limits or PageLimits()
        self._queues: dict[str, deque[_Queued]] = {}
        self._unwritten: dict[int, _Unwritten] = {}
        self._hands: dict[int, _Hand] = {}

    def enqueue(self, job: JobRow) -> None:
        """Carry out a queued job when those before it on its lane are done."""
        assert job.job_pk is not None, "an admitted job is stored"
        waiting = self._queues.get(job.model_id)
        if waiting is None:
            self._queues[job.model_id] = waiting = deque()
            self._tasks.start_soon(self._drain, job.model_id, waiting, name=f"jobs of {job.model_id}")
        waiting.append(_Queued(job.job_pk, job.job_id))

    async def cancel(self, job_id: str) -> JobRow:
        """End a job that is wanted no more, and its row then; one that has ended stays as it is.

        One that is carried out commits what is computed before it ends. It may be done before it is stopped: exactly
        one end wins. Where the end cannot be written down now, it is kept in mind: nobody carries the job out any
        more, and it ends when the store can be written.

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
            return job
        if failure is not None:
            self._unwritten[job.job_pk] = _Unwritten(JobEvent.CANCELLED, failure)
        await self._put_down(job.job_pk)
        return await self._ledger.job(job_id)

    async def _put_down(self, job_pk: int) -> None:
        hand = self._hands.get(job_pk)
        if hand is not None:
            hand.stop()
            await hand.empty.wait()
        unwritten = self._unwritten.get(job_pk)
        if unwritten is not None and unwritten.outcome is not JobEvent.FINISHED:
            # It was to fail, and who waits for it would hand it in again.
            self._unwritten[job_pk] = _Unwritten(JobEvent.CANCELLED, unwritten.failure)

    def held_up_by(self, job: JobRow) -> SynapseError | None:
        """Why a job that has nothing left to do could not be ended yet, which only this process knows."""
        unwritten = None if job.job_pk is None else self._unwritten.get(job.job_pk)
        return None if unwritten is None else unwritten.to_error()

    async def keep_order(self, interval_s: float) -> None:
        """Every so often end what is due and forget what was kept long enough."""
        while True:
            await anyio.sleep(interval_s)
            try:
                await self.settle()
            except StoreFailure as failure:
                _log.warning("jobs could not be swept, which is tried again: %s", failure.message)

    async def settle(self) -> int:
        """End the jobs that could not be ended when they should have been, then sweep; how many were forgotten."""
        for job_pk, unwritten in list(self._unwritten.items()):
            await self._end(job_pk, unwritten.outcome)
            del self._unwritten[job_pk]
        return await self._ledger.sweep()

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
        outcome: _Outcome | None = None
        try:
            job = await self._ledger.claim(job_pk)
            if job is not None:
                outcome = await self._outcome(job, hand)
                await self._end(job_pk, outcome)
        except StoreFailure as failure:
            _log.error("job %s cannot be ended in the store now, which is tried again: %s", job_id, failure.message)
            self._unwritten[job_pk] = _Unwritten(failure if outcome is None else outcome, failure)
        finally:
            del self._hands[job_pk]
            hand.empty.set()

    async def _outcome(self, job: JobRow, hand: _Hand) -> _Outcome:
        """Carry out a claimed job, until it is stopped at the longest."""
        remaining_s = max(0, job.execution_expires_ms - self._ledger.now_ms()) / 1000
        try:
            with hand.scope, anyio.move_on_after(remaining_s):
                await JobRunner(self._ledger, job, self._serving_lane, self._limits, self._clock).run()
                return JobEvent.FINISHED
        except SynapseError as error:
            return error
        except Exception as fault:
            return host_fault(f"job {job.job_id!r}", fault)
        return JobEvent.CANCELLED if hand.stopped else too_late(job)

    async def _end(self, job_pk: int, outcome: _Outcome) -> None:
        if outcome is JobEvent.FINISHED:
            await self._ledger.finish(job_pk)
        elif outcome is JobEvent.CANCELLED:
            await self._ledger.cancel_running(job_pk)
        else:
            event = JobEvent.FAILED_TRANSIENTLY if isinstance(outcome, StoreFailure) else None
            await self._ledger.fail(job_pk, outcome, event)
