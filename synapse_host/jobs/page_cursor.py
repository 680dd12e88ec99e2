"""Where a reader of a job stands: before one row of one committed page. Pure.

On the wire it is text a client keeps and gives back. It may point inside a page, so that a page larger than the reader
wants is read in pieces, and to the first page not committed yet, where the next read of a running job begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from synapse_host.errors import InvalidRequest

_SHAPE = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")


@dataclass(frozen=True, slots=True, order=True)
class PageCursor:
    """Before row ``row`` of page ``page``, both from 0."""

    page: int = 0
    row: int = 0

    def __str__(self) -> str:
        return f"{self.page}.{self.row}"

    @classmethod
    def read(cls, text: str | None) -> PageCursor:
        """The cursor of ``text``, the beginning without one; raises ``InvalidRequest`` quoting what is none."""
        if text is None:
            return cls()
        matched = _SHAPE.fullmatch(text)
        if matched is None:
            raise InvalidRequest(
                f"cursor {text!r:.80} is none this host gave; send a next_cursor unchanged, or none to begin",
                details={"cursor": text[:80]},
            )
        return cls(int(matched[1]), int(matched[2]))
