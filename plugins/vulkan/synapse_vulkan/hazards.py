"""Which dispatches must wait for those before them: the regions touched since the last barrier. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

#: (buffer, first byte, byte after the last).
Span: TypeAlias = tuple[int, int, int]


class Hazards:
    """What was read and written since the last barrier."""

    def __init__(self) -> None:
        self._read: list[Span] = []
        self._written: list[Span] = []

    def need_barrier(self, reads: Sequence[Span], writes: Sequence[Span]) -> bool:
        """Whether a step that touches these must wait; it is counted in, and everything before it forgotten if so."""
        waits = _meet(reads, self._written) or _meet(writes, self._written) or _meet(writes, self._read)
        if waits:
            self._read, self._written = [], []
        self._read += reads
        self._written += writes
        return waits


def _meet(ones: Iterable[Span], others: Sequence[Span]) -> bool:
    return any(one[0] == other[0] and one[1] < other[2] and other[1] < one[2] for one in ones for other in others)
