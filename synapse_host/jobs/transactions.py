"""Everything that happens to durable jobs, each as one transaction: whole or absent whatever becomes of the process.

Functions of a session, without a clock of their own; the ledger carries them out and counts. What may follow what is
said by ``job_state`` alone.
"""

from __future__ import annotations

import json
from typing import Any

from sqlmodel import Session

from synapse_host.errors import IdempotencyConflict, QueueFull, SynapseError
from synapse_host.jobs.clocks import ClockLengths, JobClocks
from synapse_host.jobs.job_state import JobEvent, JobState, next_state
from synapse_host.jobs.pages import Page
from synapse_host.jobs.spool import spool_chunks
from synapse_host.jobs.submission import EMBED_BATCH, Submission, decide
from synapse_host.store import job_store
from synapse_host.store.job_tables import JobPageRow, JobRow, JobWorkRow
from synapse_host.values import value_object

#: Suggested wait when too many jobs are open.
FULL_RETRY_MS = 1000


@value_object
class Opening:
    """What a new job needs beside its submission."""

    job_id: str
    module_generation: int
    lengths: ClockLengths
    now_ms: int
    most_open: int


@value_object
class Admission:
    """The job a submission led to, and whether it was ``fresh`` or let go on (``resumed``)."""

    job: JobRow
    fresh: bool = False
    resumed: bool = False


def admit(session: Session, submission: Submission, opening: Opening) -> Admission:
    """The job of a submission: the one its key names, or a new one with its texts spooled.

    Raises:
        IdempotencyConflict: the key is bound to other content.
        QueueFull: as many jobs are open as may.

    """
    for ended in job_store.kept_too_long(session, opening.now_ms, submission.request_key):
        job_store.forget(session, ended)
    known = job_store.job_by_key(session, submission.request_key)
    decision = decide(known, submission)
    if decision == "fresh":
        return Admission(_begin(session, submission, opening), fresh=True)
    assert known is not None, "only a new key has no job"
    if decision == "conflict":
        raise IdempotencyConflict(
            f"request_key {submission.request_key!r} is bound to other content by job {known.job_id}; use a new key",
            details={"request_key": submission.request_key, "job_id": known.job_id},
        )
    if decision == "resume" and not clocks_of(known).login_over(opening.now_ms):
        go_on(known, opening.now_ms)
        return Admission(known, resumed=True)
    return Admission(known)


def _begin(session: Session, submission: Submission, opening: Opening) -> JobRow:
    _refuse_another(session, opening.most_open)
    work = job_store.work_of(session, submission.request_key, submission.request_digest, submission.fingerprint)
    done: set[int] = set()
    if work is None:
        work = JobWorkRow(
            request_key=submission.request_key,
            request_digest=submission.request_digest,
            fingerprint=submission.fingerprint,
            item_count=len(submission.item_ids),
        )
        session.add(work)
        session.flush()
    elif work.items_done:
        assert work.work_pk is not None
        done = job_store.checkpointed(session, work.work_pk)
    job = _new_job(submission, opening, work)
    session.add(job)
    session.flush()
    assert job.job_pk is not None
    job_store.add_inputs(session, job.job_pk, spool_chunks(submission.item_ids, submission.texts, done))
    return job


def _refuse_another(session: Session, most_open: int) -> None:
    open_now = sum(job_store.open_by_state(session).values())
    if open_now >= most_open:
        raise QueueFull(
            f"{open_now} embed jobs are open, which is the host's limit (jobs.max_open); "
            "wait for one of them to end, then submit again",
            details={"jobs_open": open_now, "max_open": most_open},
            retry_after_ms=FULL_RETRY_MS,
        )


def _new_job(submission: Submission, opening: Opening, work: JobWorkRow) -> JobRow:
    clocks = JobClocks.started(opening.lengths, opening.now_ms, submission.deadline_ms)
    assert work.work_pk is not None
    return JobRow(
        job_id=opening.job_id,
        work_pk=work.work_pk,
        kind=EMBED_BATCH,
        request_key=submission.request_key,
        request_digest=submission.request_digest,
        module_generation=opening.module_generation,
        state=str(JobState.QUEUED),
        model_id=submission.model_id,
        fingerprint=submission.fingerprint,
        identity_json=json.dumps(submission.identity),
        item_count=len(submission.item_ids),
        page_count=work.page_count,
        items_done=work.items_done,
        created_ms=opening.now_ms,
        updated_ms=opening.now_ms,
        execution_expires_ms=clocks.execution_expires_ms,
        result_retention_ms=clocks.retention_ms,
    )


def claim(session: Session, job_pk: int, module_generation: int, now_ms: int) -> JobRow | None:
    """Take a queued job of this process to carry it out; None when it is not there to be taken any more."""
    job = session.get(JobRow, job_pk)
    if job is None or job.state != JobState.QUEUED or job.module_generation != module_generation:
        return None
    if clocks_of(job).execution_over(now_ms):
        return None
    _move(job, JobEvent.CLAIMED, now_ms)
    return job


def commit_page(session: Session, job_pk: int, page: Page, now_ms: int) -> JobRow:
    """Make a page, the checkpoints of its items and the count readers see by observable together."""
    job = session.get_one(JobRow, job_pk)
    work = session.get_one(JobWorkRow, job.work_pk)
    if job.state != JobState.RUNNING or job.page_count != work.page_count:
        raise RuntimeError(f"job {job.job_id} is {job.state} with {job.page_count} of {work.page_count} pages")
    row = JobPageRow(
        work_pk=job.work_pk,
        page_no=work.page_count,
        rows=len(page.ordinals),
        vectors=page.vectors,
        columns_json=page.columns_json,
        committed_ms=now_ms,
    )
    job_store.add_page(session, row, page.ordinals)
    work.dims = page.dims
    work.page_count += 1
    work.items_done += len(page.ordinals)
    job.page_count, job.items_done, job.updated_ms = work.page_count, work.items_done, now_ms
    return job


def finish(session: Session, job_pk: int, now_ms: int) -> JobRow:
    """End a job whose every item has its checkpoint."""
    job = session.get_one(JobRow, job_pk)
    stored = job_store.item_count_of(session, job.work_pk)
    if stored != job.item_count:
        raise RuntimeError(f"job {job.job_id} holds {stored} of {job.item_count} items and cannot be done")
    _end(session, job, JobEvent.FINISHED, None, now_ms)
    return job


def fail(session: Session, job_pk: int, event: JobEvent, error: SynapseError, now_ms: int) -> JobRow | None:
    """End a job with its error; what it committed stays readable. None when it has ended already."""
    job = session.get(JobRow, job_pk)
    if job is None or JobState(job.state).terminal:
        return None
    _end(session, job, event, error, now_ms)
    return job


def cancel(session: Session, job: JobRow, now_ms: int) -> None:
    """End a job that is wanted no more; what it committed stays readable."""
    _end(session, job, JobEvent.CANCELLED, None, now_ms)


def pause(session: Session, job_pk: int, logical_handle: str, resume_ms: int, now_ms: int) -> JobRow:
    """Let a job wait until its caller has logged in again."""
    job = session.get_one(JobRow, job_pk)
    clocks = clocks_of(job).paused(now_ms, resume_ms)
    _move(job, JobEvent.CREDENTIAL_REFUSED, now_ms)
    job.logical_handle = logical_handle
    _set_clocks(job, clocks)
    return job


def go_on(job: JobRow, now_ms: int) -> None:
    """Queue a paused job again."""
    clocks = clocks_of(job).resumed(now_ms)
    _move(job, JobEvent.RESUMED, now_ms)
    _set_clocks(job, clocks)


def clocks_of(job: JobRow) -> JobClocks:
    """The clocks of a stored job."""
    return JobClocks(
        job.execution_expires_ms, job.result_retention_ms, job.paused_at_ms, job.resume_deadline_ms, job.terminal_at_ms
    )


def error_of(job: JobRow) -> dict[str, Any] | None:
    """What a failed job failed with, as on the wire."""
    return None if job.error_json is None else json.loads(job.error_json)


def _end(session: Session, job: JobRow, event: JobEvent, error: SynapseError | None, now_ms: int) -> None:
    clocks = clocks_of(job).ended(now_ms)
    _move(job, event, now_ms)
    _set_clocks(job, clocks)
    job.error_json = None if error is None else json.dumps(error.to_wire())
    assert job.job_pk is not None
    job_store.drop_inputs(session, job.job_pk)


def _move(job: JobRow, event: JobEvent, now_ms: int) -> None:
    job.state = str(next_state(JobState(job.state), event))
    job.updated_ms = now_ms


def _set_clocks(job: JobRow, clocks: JobClocks) -> None:
    job.execution_expires_ms = clocks.execution_expires_ms
    job.paused_at_ms, job.resume_deadline_ms = clocks.paused_at_ms, clocks.resume_deadline_ms
    job.terminal_at_ms = clocks.terminal_at_ms
