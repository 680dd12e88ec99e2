"""The life of one durable job as a pure machine (wire contract sections 5 and 9).

queued → running → done, with failures from any state that is not terminal, an end by whoever wants it no more, and a
pause in which a job waits for its caller to log in again. A terminal state is never left: the same key starts another
job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused_needs_reauth"
    DONE = "done"
    FAILED_TRANSIENT = "failed_transient"
    FAILED_PERMANENT = "failed_permanent"
    #: An addition of ours, named as the contract names the state of downloads.
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether nothing will change any more."""
        return self not in OPEN


class JobEvent(StrEnum):
    """What may happen to a job."""

    #: An executor takes it.
    CLAIMED = "claimed"
    #: Every item has its vector.
    FINISHED = "finished"
    #: It met an error that may be gone next time, or its time to run is up.
    FAILED_TRANSIENTLY = "failed_transiently"
    #: It met an error that will be there next time; a quarantine is one.
    FAILED_PERMANENTLY = "failed_permanently"
    #: Its credential needs a new login.
    CREDENTIAL_REFUSED = "credential_refused"
    #: The caller logged in again and said so.
    RESUMED = "resumed"
    #: The time to log in again is up.
    LOGIN_EXPIRED = "login_expired"
    #: The host that admitted it is gone.
    HOST_RESTARTED = "host_restarted"
    #: Somebody wants it no more.
    CANCELLED = "cancelled"


#: States in which a job counts as open.
OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.PAUSED)

_ENDINGS = {
    JobEvent.FAILED_TRANSIENTLY: JobState.FAILED_TRANSIENT,
    JobEvent.FAILED_PERMANENTLY: JobState.FAILED_PERMANENT,
    JobEvent.HOST_RESTARTED: JobState.FAILED_TRANSIENT,
    JobEvent.CANCELLED: JobState.CANCELLED,
}
_MOVES: dict[tuple[JobState, JobEvent], JobState] = {
    **{(state, event): end for state in OPEN for event, end in _ENDINGS.items()},
    (JobState.QUEUED, JobEvent.CLAIMED): JobState.RUNNING,
    (JobState.RUNNING, JobEvent.FINISHED): JobState.DONE,
    (JobState.QUEUED, JobEvent.CREDENTIAL_REFUSED): JobState.PAUSED,
    (JobState.RUNNING, JobEvent.CREDENTIAL_REFUSED): JobState.PAUSED,
    (JobState.PAUSED, JobEvent.RESUMED): JobState.QUEUED,
    (JobState.PAUSED, JobEvent.LOGIN_EXPIRED): JobState.FAILED_PERMANENT,
}


class IllegalJobMove(RuntimeError):
    """An event arrived that the state does not allow; a defect of the host, never of a caller."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """The state after ``event``; raises ``IllegalJobMove`` naming both."""
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalJobMove(f"job event {event} is not allowed in state {state}") from None


def failure_event(error_class: Literal["transient", "permanent"]) -> JobEvent:
    """What an error of this class does to a job."""
    return JobEvent.FAILED_TRANSIENTLY if error_class == "transient" else JobEvent.FAILED_PERMANENTLY
