"""What a caller hands in as a job, and what becomes of a key that was handed in before. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from synapse_host.jobs.job_state import JobState
from synapse_host.store.job_tables import JobRow
from synapse_host.values import value_object

EMBED_BATCH = "embed.batch"


@value_object
class Submission:
    """One batch to run as a job. ``identity`` is what every envelope of its results says beside the vectors."""

    request_key: str
    request_digest: str
    model_id: str
    fingerprint: str
    identity: Mapping[str, Any]
    item_ids: Sequence[str]
    texts: Sequence[str]
    deadline_ms: int | None = None


#: ``attach`` to the job there is, let it go on (``resume``), start an attempt (``fresh``), or refuse (``conflict``).
Decision = Literal["attach", "resume", "fresh", "conflict"]


def decide(known: JobRow | None, submission: Submission) -> Decision:
    """What a submission means beside the newest job of its key.

    A job that failed, and one that ended under another fingerprint, is done with: its pages stay readable, and those of
    the same fingerprint are kept by the next attempt.
    """
    if known is None:
        return "fresh"
    if known.request_digest != submission.request_digest:
        return "conflict"
    state = JobState(known.state)
    if state is JobState.PAUSED:
        return "resume"
    if not state.terminal or (state is JobState.DONE and known.fingerprint == submission.fingerprint):
        return "attach"
    return "fresh"
