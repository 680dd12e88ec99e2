"""How long the check at load may compute: only time under an execution permit counts (reading 22). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Milliseconds of execution one check may take (wire contract section 2).
CEILING_MS = 2_000.0


class ExecutionBudget:
    """What one run of the check has spent; waiting for a permit, tokenizing and loading cost nothing.

    A call under way is never cut: it drains, and the run ends before the next one.
    """

    def __init__(self, clock_ms: Callable[[], float], ceiling_ms: float = CEILING_MS) -> None:
        self._clock_ms = clock_ms
        self.ceiling_ms = ceiling_ms
        self.spent_ms = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count the time of the block; it stands where the permit is held."""
        began = self._clock_ms()
        try:
            yield
        finally:
            self.spent_ms += self._clock_ms() - began

    @property
    def expired(self) -> bool:
        """Whether more was spent than the ceiling."""
        return self.spent_ms > self.ceiling_ms
