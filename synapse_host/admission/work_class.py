"""What kind of work waits for a device (wire contract section 5). Pure."""

from __future__ import annotations

from enum import StrEnum


class WorkClass(StrEnum):
    """Who waits, and so how soon its turn comes; ``fair_queue`` has the rule.

    ``JOB`` is the bulk work of durable jobs: one share with ``BULK``, which it takes in alternation with requests.
    """

    #: The host's own short work, such as the self-check of a lane that has just loaded.
    CONTROL = "control"
    #: embed.query, and rerank.score of at most 20 candidates.
    INTERACTIVE = "interactive"
    #: Inline embed.batch, larger rerank.score, and generation, whose one turn lasts for seconds.
    BULK = "bulk"
    #: A group of a durable job. Jobs take turns among themselves.
    JOB = "job"

    @property
    def is_bulk(self) -> bool:
        """Whether it belongs to the bulk share."""
        return self in BULK_KINDS


#: Requests and jobs, which share what is bulk's.
BULK_KINDS = (WorkClass.BULK, WorkClass.JOB)
