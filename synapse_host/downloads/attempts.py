"""Whether a file is worth another attempt, and when. Pure.

An attempt that brought bytes earns the next; a run of attempts that brought none ends the download.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Attempts in a row that may bring nothing.
MOST_FRUITLESS = 5
#: Attempts altogether: a server that sends a few bytes at a time must not be asked for ever.
MOST_ATTEMPTS = 200
FIRST_WAIT_S = 0.5
#: Longest wait, also of those a server asks for: past it the caller had better come back.
LONGEST_WAIT_S = 60.0


@dataclass(slots=True)
class Attempts:
    """The attempts at one address so far."""

    fruitless: int = 0
    made: int = 0

    def next_wait_s(self, *, brought_bytes: bool, asked_s: float | None = None) -> float | None:
        """Seconds until the next attempt after one that failed; None where there is none. ``asked_s``: Retry-After."""
        self.made += 1
        self.fruitless = 0 if brought_bytes else self.fruitless + 1
        if self.fruitless >= MOST_FRUITLESS or self.made >= MOST_ATTEMPTS:
            return None
        if asked_s is not None:
            return asked_s if asked_s <= LONGEST_WAIT_S else None
        return min(FIRST_WAIT_S * float(2 ** max(0, self.fruitless - 1)), LONGEST_WAIT_S)
