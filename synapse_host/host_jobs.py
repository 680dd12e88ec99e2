"""The part of the composition root that makes durable jobs: their book, and what carries them out.

Nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from anyio.abc import TaskGroup

from synapse_host.certification.alias_table import AliasTable
from synapse_host.jobs.clocks import ClockLengths
from synapse_host.jobs.counters import JobCounters
from synapse_host.jobs.dispatcher import JobDispatcher
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.operations.durable_jobs import JobService
from synapse_host.operations.job_lanes import JobLanes
from synapse_host.settings import Settings
from synapse_host.store.cancel_notes import CANCEL_NOTES, CancelNotes
from synapse_host.store.database import Store


class HostJobs:
    """The durable jobs of one host; they run in ``tasks``, and ``now_ms`` is the time of day."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        counters: JobCounters,
        *,
        module_generation: int,
        now_ms: Callable[[], int],
        lanes: JobLanes,
        aliases: AliasTable,
        tasks: TaskGroup,
    ) -> None:
        jobs = settings.jobs
        self.ledger = JobLedger(
            store,
            counters,
            module_generation=module_generation,
            now_ms=now_ms,
            lengths=ClockLengths(*(round(span * 1000) for span in (jobs.execution_s, jobs.retention_s, jobs.resume_s))),
            most_open=jobs.max_open,
        )
        self._notes = CancelNotes(store.path.with_name(CANCEL_NOTES))
        self._dispatcher = JobDispatcher(
            self.ledger,
            self._notes,
            lanes.of,
            tasks,
            clock=time.monotonic,
            limits=PageLimits(jobs.page_bytes, jobs.commit_s),
        )
        self.service = JobService(
            self.ledger,
            self._dispatcher.enqueue,
            self._dispatcher.cancel,
            self._dispatcher.held_up_by,
            aliases,
            jobs.page_bytes,
            settings.server.max_frame,
        )
        self._tasks = tasks
        self._sweep_s = jobs.sweep_s

    async def take_up(self) -> None:
        """End what an earlier host left open, and keep the book in order from here on."""
        await self.ledger.reconcile(await self._notes.read())
        await self._notes.begin()
        self._tasks.start_soon(self._dispatcher.keep_order, self._sweep_s, name="job clocks")
