"""What a client sees of a job: its status, and its committed rows from a cursor on."""

from __future__ import annotations

import json
from typing import Any

from sqlmodel import Session

from synapse_host.errors import InvalidRequest, SynapseError
from synapse_host.jobs.job_state import JobState
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.jobs.pages import Excerpt
from synapse_host.jobs.part_keys import part_key, part_number
from synapse_host.jobs.transactions import error_of
from synapse_host.store import job_store
from synapse_host.store.job_tables import JobRow, JobWorkRow
from synapse_host.values import value_object


@value_object
class JobExcerpt:
    """Rows of a job, and where the next read begins; None when the job has ended and this was all of it."""

    job: JobRow
    rows: Excerpt
    next_cursor: PageCursor | None


def job_status(job: JobRow, held_up_by: SynapseError | None = None) -> dict[str, Any]:
    """The status of a job (wire contract section 9); what does not apply to its state is left out.

    ``waiting_for`` is an addition of ours: why an open job stands still, as the store cannot be written.
    """
    status: dict[str, Any] = {
        "job_id": job.job_id,
        "kind": job.kind,
        "state": job.state,
        "request_key": job.request_key,
        "model_id": job.model_id,
        "fingerprint": job.fingerprint,
        "item_count": job.item_count,
        "items_done": job.items_done,
        "pages_available": job.page_count,
        "job_module_generation": job.module_generation,
    }
    if job.state == JobState.DONE:
        status["page_count"] = job.page_count
    if job.state == JobState.PAUSED:
        status.update(
            logical_handle=job.logical_handle,
            paused_at_ms=job.paused_at_ms,
            resume_deadline_ms=job.resume_deadline_ms,
            action="reauth",
        )
    if held_up_by is not None and not JobState(job.state).terminal:
        status["waiting_for"] = held_up_by.to_wire()
    error = error_of(job)
    if error is not None:
        status["error"] = error
    return status


def identity_of(job: JobRow) -> dict[str, Any]:
    """What the envelopes of a job's results say of what computed it."""
    identity: dict[str, Any] = json.loads(job.identity_json)
    return identity


def read_excerpt(session: Session, job_id: str, cursor: PageCursor, max_bytes: int) -> JobExcerpt:
    """At most ``max_bytes`` of committed rows from ``cursor`` on, but at least one where there is one.

    Raises:
        InvalidRequest: there is no such job, or the cursor points behind what was committed.

    """
    job = known_job(session, job_id)
    work = session.get_one(JobWorkRow, job.work_pk)
    rows = Excerpt(work.dims or 0, max_bytes)
    if cursor > PageCursor(job.page_count):
        raise _beyond(job, cursor)
    at = cursor
    while at.page < job.page_count and not rows.full:
        page = job_store.page_of(session, job.work_pk, at.page)
        assert page is not None, "a page that is counted is there"
        if at.row >= page.rows:
            raise _beyond(job, cursor, page.rows)
        row = rows.take(page.vectors, page.columns_json, at.row)
        at = PageCursor(at.page + 1) if row is None else PageCursor(at.page, row)
    over = JobState(job.state).terminal and at.page == job.page_count
    return JobExcerpt(job, rows, None if over else at)


def open_under(session: Session, request_key: str) -> list[JobRow]:
    """The open jobs of a key and of the parts of its work, the newest first.

    Anybody's key may end in a number. So beside the first part only one counts whose predecessor is known as well; it
    is, for it is handed in before, and ended jobs are kept for long.

    Raises:
        InvalidRequest: no job has or had this key.

    """
    jobs = [job for job in job_store.open_jobs(session) if _is_of(session, job.request_key, request_key)]
    known = (request_key, part_key(request_key, 1))
    if not jobs and not any(job_store.is_known_key(session, key) for key in known):
        raise InvalidRequest(
            f"no job has the request_key {request_key!r} or is a part of it; it is unknown, or its results were kept "
            "as long as the host keeps them",
            details={"request_key": request_key},
        )
    return jobs[::-1]


def _is_of(session: Session, key: str, request_key: str) -> bool:
    number = part_number(request_key, key)
    if number is None:
        return key == request_key
    return number == 1 or job_store.is_known_key(session, part_key(request_key, number - 1))


def known_job(session: Session, job_id: str) -> JobRow:
    """The job of this id; raises ``InvalidRequest`` for one that is unknown or was forgotten."""
    job = job_store.job_by_id(session, job_id)
    if job is None:
        raise InvalidRequest(
            f"no job {job_id!r}; it is unknown, or its results were kept as long as the host keeps them",
            details={"job_id": job_id},
        )
    return job


def _beyond(job: JobRow, cursor: PageCursor, rows: int | None = None) -> InvalidRequest:
    """``rows`` are those of the cursor's page, where there is one."""
    behind = f"the {job.page_count} pages" if rows is None else f"the {rows} rows of page {cursor.page}, which"
    return InvalidRequest(
        f"cursor {cursor} points behind {behind} job {job.job_id!r} has committed; "
        "send a next_cursor of this job unchanged, or none to begin",
        details={"job_id": job.job_id, "cursor": str(cursor), "pages_available": job.page_count},
    )
