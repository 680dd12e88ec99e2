"""Gathers the rows of a running job and commits them, while the engine computes the next ones."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.pages import Page, PageBuilder
from synapse_host.jobs.windows import Rows
from synapse_host.values import value_object


@value_object
class PageLimits:
    """When a page is committed: at so many bytes, or so many seconds after its first row."""

    bytes: int = 512 * 1024
    seconds: float = 1.0


class PageWriter:
    """The pages of one running job, one commit at a time."""

    def __init__(
        self, ledger: JobLedger, job_pk: int, limits: PageLimits, clock: Callable[[], float], tasks: TaskGroup
    ) -> None:
        self._ledger = ledger
        self._job_pk = job_pk
        self._limits = limits
        self._clock = clock
        self._tasks = tasks
        self._builder: PageBuilder | None = None
        self._begun = 0.0
        self._committing: anyio.Event | None = None
        self._fault: Exception | None = None

    async def add(self, rows: Rows, dims: int, vectors: bytes) -> None:
        """Take computed rows; raises what an earlier commit failed with."""
        if self._builder is None:
            self._builder, self._begun = PageBuilder(dims), self._clock()
        self._builder.add(rows.ordinals, rows.ids, rows.encoded, vectors)
        if self._builder.size >= self._limits.bytes or self._clock() - self._begun >= self._limits.seconds:
            await self._settled()
            page, self._builder = self._builder.page(), None
            self._committing = anyio.Event()
            self._tasks.start_soon(self._commit, page, self._committing, name="commit page")

    async def flush(self) -> None:
        """Commit what is left; raises what a commit failed with."""
        await self._settled()
        if self._builder is not None:
            page, self._builder = self._builder.page(), None
            await self._ledger.commit_page(self._job_pk, page)

    async def _settled(self) -> None:
        if self._committing is not None:
            await self._committing.wait()
        if self._fault is not None:
            raise self._fault

    async def _commit(self, page: Page, done: anyio.Event) -> None:
        try:
            # Computed rows are worth keeping whatever ends the job.
            with anyio.CancelScope(shield=True):
                await self._ledger.commit_page(self._job_pk, page)
        except Exception as fault:
            self._fault = fault
        finally:
            done.set()
