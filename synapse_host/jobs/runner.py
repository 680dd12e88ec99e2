"""One job carried out: texts read ahead and tokenised, groups computed one turn at a time, pages committed beside.

A crash of the worker costs its group a second try, at the end and one item at a time: everything else is computed
first, and an item that kills the engine is found and named. Between two such tries, and after the last, the engine
shows with a text of ours that it works: two crashes in a row would quarantine the model for everybody, and it is the
item.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from synapse_host.errors import EngineCrashed, InvalidRequest, ModelLoading, SynapseError
from synapse_host.jobs.job_lane import JobLane, ServingLane
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.page_writer import PageLimits, PageWriter
from synapse_host.jobs.spool import SpooledItems
from synapse_host.jobs.windows import NOTHING, Rows, cut, rows_of
from synapse_host.store.job_tables import JobRow
from synapse_host.tokenization.freed_memory import MANY_CHARACTERS, give_back_freed_memory

#: What every engine can embed, and what errors call it.
_HARMLESS, _HARMLESS_ID = "a", "a text of the host's own"
#: Groups that may be tried again. An engine that crashes on every group is quarantined before.
MOST_SUSPECTS = 3

_Ahead = Rows | Exception
_NOBODY_TAKES = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class JobRunner:
    """Computes what one claimed job still lacks."""

    def __init__(
        self,
        ledger: JobLedger,
        job: JobRow,
        serving_lane: ServingLane,
        limits: PageLimits,
        clock: Callable[[], float],
    ) -> None:
        assert job.job_pk is not None, "a claimed job is stored"
        self._ledger = ledger
        self._job = job
        self._job_pk = job.job_pk
        self._serving_lane = serving_lane
        self._limits = limits
        self._clock = clock
        self._suspects: list[Rows] = []
        #: The refusal of an item that can have no vector; it ends the job when all others have theirs.
        self._wordless: InvalidRequest | None = None

    async def run(self) -> None:
        """Compute and commit everything; raises the first error that ends the job, with what was computed committed."""
        # The lease comes before the load: nobody may take the lane away between the two.
        with self._serving_lane(self._job).lease({"kind": "job", "job_id": self._job.job_id}):
            fault = await self._beside(await self._ready_lane())
        if fault is not None:
            raise fault

    async def _beside(self, lane: JobLane) -> Exception | None:
        async with anyio.create_task_group() as tasks:
            pages = PageWriter(self._ledger, self._job_pk, self._limits, self._clock, tasks)
            send, receive = anyio.create_memory_object_stream[_Ahead](0)
            fault: Exception | None = None
            try:
                with send, receive:
                    tasks.start_soon(self._read_ahead, lane, send, name="read ahead")
                    await self._compute_all(receive, pages)
            except Exception as raised:
                fault = raised
            finally:
                # A host that stops keeps what it has computed, too.
                with anyio.CancelScope(shield=True):
                    fault = await _flushed(pages, fault)
                tasks.cancel_scope.cancel()
        return fault

    async def _read_ahead(self, lane: JobLane, send: MemoryObjectSendStream[_Ahead]) -> None:
        """Hand over the tokenised items, a chunk at a time; the next is being made while one is computed."""
        # Nobody takes any more once the computing has failed.
        with send, suppress(*_NOBODY_TAKES):
            try:
                chunk_no = 0
                while (chunk := await self._ledger.inputs(self._job_pk, chunk_no)) is not None:
                    rows, wordless = await anyio.to_thread.run_sync(_encoded, lane, chunk)
                    self._wordless = self._wordless or wordless
                    await send.send(rows)
                    chunk_no += 1
            except _NOBODY_TAKES:
                raise
            except Exception as fault:
                await send.send(fault)

    async def _compute_all(self, ahead: MemoryObjectReceiveStream[_Ahead], pages: PageWriter) -> None:
        left = NOTHING
        async for found in ahead:
            if isinstance(found, Exception):
                raise found
            left = await self._compute_stretch(left.then(found), pages, last=False)
        await self._compute_stretch(left, pages, last=True)
        if self._suspects:
            await self._see_it_work()
        for suspect in self._suspects:
            for row in suspect.alone():
                await self._compute_suspect(row, pages)
        if self._wordless is not None:
            raise self._wordless

    async def _compute_stretch(self, rows: Rows, pages: PageWriter, *, last: bool) -> Rows:
        lane = self._serving_lane(self._job)
        groups, left = cut(rows, lane.policy, lane.buckets, last=last)
        for group in groups:
            try:
                await self._compute(group, pages)
            except EngineCrashed as crash:
                if crash.error_class == "permanent" or len(self._suspects) == MOST_SUSPECTS:
                    raise
                self._suspects.append(group)
        return left

    async def _compute_suspect(self, row: Rows, pages: PageWriter) -> None:
        try:
            await self._compute(row, pages)
        except EngineCrashed as crash:
            with suppress(SynapseError):
                await self._see_it_work()
            details: dict[str, Any] = {**(crash.details or {}), "item_id": row.ids[0]}
            raise EngineCrashed(
                f"item {row.ids[0]!r} was being embedded alone when this happened a second time: {crash.message}",
                details=details,
                error_class=crash.error_class,
                retry_after_ms=crash.retry_after_ms,
            ) from crash

    async def _see_it_work(self) -> None:
        """Have something embedded that harms no engine; raises what the lane raises where even that fails."""
        lane = await self._ready_lane()
        (row,) = lane.encoder.encode([_HARMLESS])
        if row.ids:
            await lane.embed([row.ids], [_HARMLESS_ID])

    async def _compute(self, group: Rows, pages: PageWriter) -> None:
        # The worker may have died since, of this job or of somebody else's request.
        lane = await self._ready_lane()
        dims, vectors = await lane.embed([row.ids for row in group.encoded], group.ids)
        await pages.add(group, dims, vectors)

    async def _ready_lane(self) -> JobLane:
        """The lane, loaded: a job waits for that as long as it may run (wire contract section 2, model_loading)."""
        while True:
            lane = self._serving_lane(self._job)
            try:
                await lane.load()
                return lane
            except ModelLoading as refusal:
                await anyio.sleep((refusal.retry_after_ms or 0) / 1000)


def _encoded(lane: JobLane, chunk: bytes) -> tuple[Rows, InvalidRequest | None]:
    items = SpooledItems.read(chunk)
    found = rows_of(items, lane.encoder.encode(items.texts))
    if sum(map(len, items.texts)) >= MANY_CHARACTERS:
        give_back_freed_memory()
    return found


async def _flushed(pages: PageWriter, fault: Exception | None) -> Exception | None:
    try:
        await pages.flush()
    except Exception as raised:
        return fault or raised
    return fault
