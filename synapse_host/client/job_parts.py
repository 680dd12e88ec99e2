"""How work of any size becomes jobs, and the names of those jobs. Pure (wire contract, reading 14)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: The most one job is given: what fits a frame many times over, and is lost least when it is handed in again.
MAX_JOB_ITEMS = 4096
MAX_JOB_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class JobPart:
    """The items of one job; ``number`` counts parts from 1."""

    number: int
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def key(self, request_key: str) -> str:
        """The key of this part of the work of ``request_key``."""
        return f"{request_key}/{self.number:04d}"


def job_parts(
    items: Iterable[tuple[str, str]], *, max_items: int = MAX_JOB_ITEMS, max_bytes: int = MAX_JOB_BYTES
) -> Iterator[JobPart]:
    """``items``, ids with their texts, in parts of at most so many items and bytes; a longer text is a part alone.

    The same items always make the same parts, which is what lets a second run go on with the first one's.
    """
    part, size = JobPart(1), 0
    for item_id, text in items:
        length = len(item_id.encode("utf-8", "surrogatepass")) + len(text.encode("utf-8", "surrogatepass"))
        if part.ids and (len(part.ids) == max_items or size + length > max_bytes):
            yield part
            part, size = JobPart(part.number + 1), 0
        part.ids.append(item_id)
        part.texts.append(text)
        size += length
    if part.ids:
        yield part
