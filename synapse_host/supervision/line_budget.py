"""How many lines may be written, as a bucket that time fills. Pure, the clock injected."""

from __future__ import annotations

from collections.abc import Callable


class LineBudget:
    """``per_second`` lines a second, and as many at once after a quiet second; what gets none is counted."""

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        self._rate = per_second
        self._clock = clock
        self._left = float(per_second)
        self._at = clock()
        self._refused = 0

    def take(self) -> bool:
        """Whether one more line may be written now."""
        now = self._clock()
        self._left = min(float(self._rate), self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            self._refused += 1
            return False
        self._left -= 1
        return True

    def refused(self) -> int:
        """Lines refused since this was last asked."""
        refused, self._refused = self._refused, 0
        return refused
