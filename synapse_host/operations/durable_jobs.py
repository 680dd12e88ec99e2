"""Durable embed jobs: a batch too large to answer inline, its results page by page, and going on after a login."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import anyio.to_thread
from pydantic import Field, StrictInt, StrictStr

from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import InvalidRequest, SynapseError
from synapse_host.identity.digests import sha256_hex
from synapse_host.jobs.job_reader import JobExcerpt, identity_of, job_status
from synapse_host.jobs.ledger import JobLedger
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.jobs.request_digest import request_digest
from synapse_host.jobs.submission import EMBED_BATCH, Submission
from synapse_host.lanes.lane import Lane
from synapse_host.operations.constraints import Constraints, Name, Params
from synapse_host.operations.envelope import inference_envelope
from synapse_host.operations.registry import Method, RawVectors, Reply, RequestContext
from synapse_host.store.job_tables import JobRow
from synapse_host.values import value_object

#: Part of a frame a page may fill: its vectors may have to be written as JSON numbers, of some twenty characters each.
_PAGE_SHARE = 8
#: Jobs that ``admission.status`` lists.
RECENT_JOBS = 50


class EmbedResultParams(Params):
    """Which rows of which job."""

    job_id: Name
    cursor: Annotated[StrictStr, Field(max_length=256)] | None = None
    max_page_bytes: Annotated[StrictInt, Field(ge=1)] | None = None


class JobResumeParams(Params):
    """The job to go on with."""

    job_id: Name


class JobCancelParams(Params):
    """The job that is wanted no more, or the key of work that may be several jobs."""

    job_id: Name | None = None
    request_key: Name | None = None


@value_object
class JobService:
    """Takes batches as jobs and reads them out.

    ``enqueue`` lets a queued job be carried out, ``cancel_job`` ends one that is wanted no more, and
    ``held_up_by`` says why one stands still.
    """

    ledger: JobLedger
    enqueue: Callable[[JobRow], None]
    cancel_job: Callable[[str], Awaitable[JobRow]]
    held_up_by: Callable[[JobRow], SynapseError | None]
    aliases: AliasTable
    page_bytes: int
    max_frame: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("embed.result", "query", EmbedResultParams, self.result),
            Method("job.resume", "mutate", JobResumeParams, self.resume),
            Method("job.cancel", "mutate", JobCancelParams, self.cancel),
        ]

    async def submit(
        self, lane: Lane, request_key: str, constraints: Constraints, ids: Sequence[str], texts: Sequence[str]
    ) -> Reply:
        """Take a batch as a job, or attach to the one its key names; the job's status.

        Raises:
            IdempotencyConflict: the key is bound to other content.
            QueueFull: as many jobs are open as may.

        """
        # Held as a request until it is held as a job: the lane must not be removed in between.
        with lane.lease():
            submission = await anyio.to_thread.run_sync(self._submission, lane, request_key, constraints, ids, texts)
            admission = await self.ledger.admit(submission)
        if admission.fresh or admission.resumed:
            self.enqueue(admission.job)
        return self._status(admission.job)

    async def result(self, params: EmbedResultParams, context: RequestContext) -> Reply:
        """Committed rows of a job, running or not, from a cursor on."""
        cursor = PageCursor.read(params.cursor, params.job_id)
        most = min(params.max_page_bytes or self.page_bytes, max(1, self.max_frame // _PAGE_SHARE))
        return self._page(await self.ledger.excerpt(params.job_id, cursor, most))

    async def resume(self, params: JobResumeParams, context: RequestContext) -> Reply:
        """Go on with a job that waited for a login."""
        job, was_paused = await self.ledger.resume(params.job_id)
        if was_paused:
            self.enqueue(job)
        return self._status(job)

    async def cancel(self, params: JobCancelParams, context: RequestContext) -> Reply:
        """End a job, or all open jobs of a key; what they committed stays readable."""
        if (params.job_id is None) == (params.request_key is None):
            raise InvalidRequest(
                "job.cancel takes either job_id or request_key; give exactly one of them", channel=True
            )
        if params.job_id is not None:
            return self._status(await self.cancel_job(params.job_id))
        # The newest first, so that none of them begins because another one ended.
        found = await self.ledger.open_under(params.request_key or "")
        ended = [self._shown(await self.cancel_job(job.job_id)) for job in found]
        return Reply({"module_generation": self.ledger.module_generation, "jobs": ended})

    async def status_of(self, job_id: str) -> dict[str, Any] | None:
        """The status of a job of this kind, for ``model.status``; None where there is none of this id."""
        job = await self.ledger.find(job_id)
        return None if job is None else self._shown(job)

    async def recent(self) -> list[dict[str, Any]]:
        """The status of the newest jobs, for ``admission.status``."""
        return [self._shown(job) for job in await self.ledger.newest(RECENT_JOBS)]

    def _submission(
        self, lane: Lane, request_key: str, constraints: Constraints, ids: Sequence[str], texts: Sequence[str]
    ) -> Submission:
        model = lane.model
        content = [sha256_hex(text.encode()) for text in texts]
        digest = request_digest(EMBED_BATCH, model.model_id, constraints.model_dump(), ids, content)
        envelope = inference_envelope(model, dims=0, table_epoch=0, module_generation=0)
        return Submission(
            request_key=request_key,
            request_digest=digest,
            model_id=model.model_id,
            fingerprint=model.fingerprint,
            identity={name: envelope[name] for name in ("fingerprint", "provenance")},
            item_ids=ids,
            texts=texts,
            deadline_ms=constraints.deadline_ms,
        )

    def _shown(self, job: JobRow) -> dict[str, Any]:
        return job_status(job, self.held_up_by(job))

    def _status(self, job: JobRow) -> Reply:
        return Reply({"module_generation": self.ledger.module_generation, **self._shown(job)})

    def _page(self, excerpt: JobExcerpt) -> Reply:
        job, rows = excerpt.job, excerpt.rows
        payload: dict[str, Any] = {
            **identity_of(job),
            "table_epoch": self.aliases.epoch,
            "dims": rows.dims,
            "module_generation": self.ledger.module_generation,
            "equivalent_to": list(self.aliases.equivalents(job.fingerprint)),
            **self._shown(job),
            "vectors": rows.vectors,
            "real_token_counts": rows.real_token_counts,
            "truncation_disclosures": rows.truncation_disclosures,
        }
        if excerpt.next_cursor is not None:
            payload["next_cursor"] = excerpt.next_cursor.to_wire(job.job_id)
        return Reply(payload, RawVectors(len(rows.vectors), rows.dims, rows.data) if rows.vectors else None)


def job_key(request_key: str | None, refusal: Mapping[str, int], what: str) -> str:
    """The key a batch that is too large to answer inline must have; raises ``InvalidRequest`` without one."""
    key = (request_key or "").strip()
    if not key:
        number, limit = refusal[what], refusal[f"max_{what}"]
        raise InvalidRequest(
            f"the batch holds {number} {what} and an inline batch takes at most {limit}; give it a request_key to run "
            "it as a job, or send smaller batches",
            details=dict(refusal),
        )
    return key
