"""What was seen lately: percentiles of the last waits, and what a turn of a class takes. Pure."""

from __future__ import annotations

from collections import deque
from math import ceil

#: Waits that percentiles are taken over (original facts 2.5).
WAITS_KEPT = 256
#: Seconds after which a class of work that has not been seen is not reckoned with any more.
REMEMBERED_S = 10.0
#: Weight of the newest in a running mean.
NEWEST = 0.2


class Waits:
    """The last waits for a device, in milliseconds."""

    def __init__(self, kept: int = WAITS_KEPT) -> None:
        self._waits: deque[float] = deque(maxlen=kept)

    def note(self, wait_ms: float) -> None:
        """One more turn began after ``wait_ms``."""
        self._waits.append(wait_ms)

    def percentile(self, share: float) -> float | None:
        """The wait that ``share`` of them did not pass, by nearest rank; None where there was none yet."""
        if not self._waits:
            return None
        ordered = sorted(self._waits)
        return ordered[max(0, ceil(share * len(ordered)) - 1)]


class Usual:
    """What one turn of a class has been expected to take lately, in milliseconds."""

    def __init__(self) -> None:
        self._mean = self._most = 0.0
        self._seen_at = float("-inf")

    def note(self, estimate_ms: float, now: float) -> None:
        """One more turn was asked for."""
        known = now - self._seen_at <= REMEMBERED_S
        self._mean = self._mean + NEWEST * (estimate_ms - self._mean) if known else estimate_ms
        self._most = max(estimate_ms, self._most) if known else estimate_ms
        self._seen_at = now

    def ended(self, now: float) -> None:
        """One of its turns is over, which may have been asked for long ago."""
        self._seen_at = now

    def mean(self, now: float) -> float:
        """What it takes on average; 0 where none was seen lately."""
        return self._mean if now - self._seen_at <= REMEMBERED_S else 0.0

    def most(self, now: float, *, here: bool = False) -> float:
        """What the largest took since the class was last unseen; 0 where none was seen lately, nor one is ``here``."""
        return self._most if here or now - self._seen_at <= REMEMBERED_S else 0.0
