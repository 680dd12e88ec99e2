"""Ends that no executor brings about: a host that restarted, clocks that ran out, results kept long enough.

Beside other work each job ends in a transaction of its own, so that none of this holds up the store for long.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlmodel import Session

from synapse_host.errors import EXCEPTIONS, DeadlineExceeded, ModuleRestarted, SynapseError
from synapse_host.jobs.job_state import JobEvent, JobState
from synapse_host.jobs.transactions import cancel, clocks_of, fail
from synapse_host.store import job_store
from synapse_host.store.job_tables import JobRow


def of_earlier_hosts(session: Session, module_generation: int) -> list[int]:
    """The open jobs that a host before this one admitted."""
    return [_key(job) for job in job_store.open_jobs(session) if job.module_generation < module_generation]


def end_restarted(
    session: Session, job_pks: Sequence[int], now_ms: int, cancelled: Collection[str] = ()
) -> list[JobRow]:
    """End jobs whose host is gone, those of the ids in ``cancelled`` as what they are; all of them."""
    jobs = [session.get_one(JobRow, job_pk) for job_pk in job_pks]
    for job in jobs:
        if job.job_id in cancelled:
            cancel(session, job, now_ms)
        else:
            fail(session, _key(job), JobEvent.HOST_RESTARTED, restarted(job.job_id), now_ms)
    return jobs


def restarted(job_id: str) -> ModuleRestarted:
    """The error of a job whose host is gone."""
    return ModuleRestarted(
        f"the host restarted before job {job_id!r} ended; submit it again under the same request_key: "
        "what it committed is kept"
    )


def expired(session: Session, now_ms: int) -> list[tuple[int, JobEvent, SynapseError]]:
    """Jobs in nobody's hands whose time is up, with what that does to each."""
    return [ended for job in job_store.open_jobs(session) if (ended := expiry(job, now_ms)) is not None]


def expiry(job: JobRow, now_ms: int) -> tuple[int, JobEvent, SynapseError] | None:
    """What a clock that ran out does to a job; a running one is stopped by its executor."""
    clocks = clocks_of(job)
    if job.state == JobState.QUEUED and clocks.execution_over(now_ms):
        return _key(job), JobEvent.FAILED_TRANSIENTLY, too_late(job)
    if clocks.login_over(now_ms):
        error = EXCEPTIONS["needs_reauth_expired"](
            f"job {job.job_id!r} waited too long for a login of {job.logical_handle!r}; log in and submit it again"
        )
        return _key(job), JobEvent.LOGIN_EXPIRED, error
    return None


def too_late(job: JobRow) -> DeadlineExceeded:
    """The error of a job whose time to run is up."""
    allowed = job.execution_expires_ms - job.created_ms
    return DeadlineExceeded(
        f"job {job.job_id!r} was not done in the {allowed} ms it had; submit it again under the same request_key, "
        "with a larger deadline_ms if it named one: what it committed is kept"
    )


def results_over(session: Session, now_ms: int) -> list[int]:
    """Ended jobs whose results need not be kept any more."""
    return [_key(job) for job in job_store.kept_too_long(session, now_ms)]


def forget(session: Session, job_pk: int) -> None:
    """Delete an ended job with what only it holds."""
    job = session.get(JobRow, job_pk)
    if job is not None:
        job_store.forget(session, job)


def _key(job: JobRow) -> int:
    assert job.job_pk is not None, "a stored job has its key"
    return job.job_pk
