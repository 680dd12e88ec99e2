"""Durable jobs over a real store and a lane that computes nothing, without a host."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from synapse_host.jobs.clocks import ClockLengths
from synapse_host.jobs.counters import JobCounters
from synapse_host.jobs.dispatcher import JobDispatcher
from synapse_host.jobs.job_state import JobState
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.jobs.request_digest import request_digest
from synapse_host.jobs.submission import EMBED_BATCH, Submission
from synapse_host.jobs.transactions import Admission
from synapse_host.store.cancel_notes import CANCEL_NOTES, CancelNotes
from synapse_host.store.database import Store
from synapse_host.store.job_tables import JobRow
from synapse_host.testing.no_op_lane import NoOpLane

#: Seconds after which a job of a test is taken to be stuck.
PATIENCE_S = 30.0
FINGERPRINT = "f" * 64


def submission_of(
    key: str,
    ids: Sequence[str],
    texts: Sequence[str],
    *,
    fingerprint: str = FINGERPRINT,
    deadline_ms: int | None = None,
) -> Submission:
    """A batch for model ``m``, its digest computed as the host computes it."""
    content = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    digest = request_digest(EMBED_BATCH, "m", {}, ids, content)
    identity = {"fingerprint": fingerprint, "provenance": {}}
    return Submission(key, digest, "m", fingerprint, identity, ids, texts, deadline_ms)


def numbered(key: str, count: int, **facts: Any) -> Submission:
    """``count`` items of different lengths, the ids of which hold their places."""
    texts = [f"{'word ' * (place * 7 % 13)}{key} {place}" for place in range(count)]
    return submission_of(key, [f"{key}-{place}" for place in range(count)], texts, **facts)


@dataclass(slots=True)
class JobBench:
    """A ledger, its dispatcher and the lane its jobs run on."""

    store: Store
    ledger: JobLedger
    dispatcher: JobDispatcher
    lane: NoOpLane

    async def submit(self, submission: Submission) -> Admission:
        """Admit, and carry out what is fresh or goes on."""
        admission = await self.ledger.admit(submission)
        if admission.fresh or admission.resumed:
            self.dispatcher.enqueue(admission.job)
        return admission

    async def ended(self, job_id: str) -> JobRow:
        """Wait until a job has ended and was counted; raises ``TimeoutError``."""
        job = await self.when(job_id, lambda job: JobState(job.state).terminal)
        with anyio.fail_after(PATIENCE_S):
            # The row is there for a moment before the count: its writer has yet to come back to the event loop.
            while self.ledger.counters.open != sum((await self.ledger.open_by_state()).values()):
                await anyio.lowlevel.checkpoint()
        return job

    async def when(self, job_id: str, condition: Callable[[JobRow], bool]) -> JobRow:
        """Wait until a job is as wanted; raises ``TimeoutError``."""
        with anyio.fail_after(PATIENCE_S):
            while not condition(job := await self.ledger.job(job_id)):
                await anyio.lowlevel.checkpoint()
        return job

    async def vectors(self, job_id: str, max_bytes: int = 1 << 20) -> dict[str, bytes]:
        """Every committed row by id; raises ``AssertionError`` where one comes twice."""
        found: dict[str, bytes] = {}
        cursor: PageCursor | None = PageCursor()
        while cursor is not None:
            excerpt = await self.ledger.excerpt(job_id, cursor, max_bytes)
            for item_id, vector in _rows(excerpt.rows.vectors, bytes(excerpt.rows.data), excerpt.rows.dims):
                assert item_id not in found, f"{item_id} is in two pages"
                found[item_id] = vector
            if excerpt.next_cursor == cursor:
                break
            cursor = excerpt.next_cursor
        return found


@asynccontextmanager
async def job_bench(
    path: Path,
    lane: NoOpLane | None = None,
    *,
    generation: int = 1,
    limits: PageLimits | None = None,
    lengths: ClockLengths | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    most_open: int = 4096,
    on_open: Callable[[Store], None] = lambda store: None,
) -> AsyncIterator[JobBench]:
    """A bench on the store at ``path``, as the host of ``generation``: what earlier ones left open is ended first.

    ``on_open`` is given the open store before that.
    """
    store = Store.open(path)
    try:
        on_open(store)
        ledger = JobLedger(
            store, JobCounters(), module_generation=generation, now_ms=now_ms, lengths=lengths, most_open=most_open
        )
        notes = CancelNotes(path.with_name(CANCEL_NOTES))
        await ledger.reconcile(await notes.read())
        await notes.begin()
        async with anyio.create_task_group() as tasks:
            carrying = lane or NoOpLane()
            dispatcher = JobDispatcher(
                ledger, notes, carrying.serving, tasks, clock=time.monotonic, limits=limits or PageLimits()
            )
            yield JobBench(store, ledger, dispatcher, carrying)
            tasks.cancel_scope.cancel()
    finally:
        store.close()


def _rows(items: Sequence[dict[str, str]], data: bytes, dims: int) -> Iterator[tuple[str, bytes]]:
    for place, item in enumerate(items):
        yield item["id"], data[place * dims * 4 : (place + 1) * dims * 4]
