"""Where a reader of a job stands: before one row of one committed page. Pure.

On the wire it is text a client keeps and gives back. It may point inside a page, so that a page larger than the reader
wants is read in pieces, and to the first page not committed yet, where the next read of a running job begins. It
carries a mark of its job and place: with another job's, or one put together by hand, rows would be left out silently.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from synapse_host.errors import InvalidRequest

_SHAPE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, order=True)
class PageCursor:
    """Before row ``row`` of page ``page``, both from 0."""

    page: int = 0
    row: int = 0

    def __str__(self) -> str:
        return f"{self.page}.{self.row}"

    def to_wire(self, job_id: str) -> str:
        """The cursor as a reader of this job is given it."""
        mark = hashlib.sha256(f"{job_id} {self}".encode()).hexdigest()[:8]
        return f"{self}.{mark}"

    @classmethod
    def read(cls, text: str | None, job_id: str) -> PageCursor:
        """The cursor of ``text``, the beginning without one; raises ``InvalidRequest`` quoting what is none."""
        if text is None:
            return cls()
        matched = _SHAPE.fullmatch(text)
        cursor = cls() if matched is None else cls(int(matched[1]), int(matched[2]))
        if matched is None or cursor.to_wire(job_id) != text:
            raise InvalidRequest(
                f"cursor {text!r:.80} is none this host gave for job {job_id!r}; send a next_cursor of this job "
                "unchanged, or none to begin",
                details={"job_id": job_id, "cursor": text[:80]},
            )
        return cursor
