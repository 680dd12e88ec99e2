"""Whose turn it is to compute on a device: so many at once, in the order they asked (reading 36: per device). Pure.

No task waits here: what asks is a callable, called when its turn comes, from whoever ends the turn before. The next
group is then on its way to its worker before anybody looks at the answer of the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

#: Begins one computation; it must not raise, and ``DeviceTurns.end`` must be called when that is over.
Begin = Callable[[], None]


class DeviceTurns:
    """The turns of one device."""

    def __init__(self, most: int = 1) -> None:
        self._most = most
        self._asked: deque[Begin] = deque()
        self._advancing = False
        #: Computations begun and not ended.
        self.running = 0

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._asked)

    @property
    def free(self) -> bool:
        """True when one that asked now would begin at once."""
        return not self._asked and self.running < self._most

    def ask(self, begin: Begin) -> None:
        """Call ``begin`` now, or when everyone who asked before has had a turn."""
        self._asked.append(begin)
        self._advance()

    def withdraw(self, begin: Begin) -> bool:
        """Take back what was asked; False where its turn has come already."""
        if begin not in self._asked:
            return False
        self._asked.remove(begin)
        return True

    def end(self) -> None:
        """One computation is over, in whatever way."""
        self.running -= 1
        self._advance()

    def _advance(self) -> None:
        # What begins may end at once; a thousand of those must not become a thousand nested calls.
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._asked and self.running < self._most:
                self.running += 1
                self._asked.popleft()()
        finally:
            self._advancing = False


class Devices:
    """The turns of every device class, made when first asked for."""

    def __init__(self, most_per_device: int = 1) -> None:
        self._most = most_per_device
        self._turns: dict[str, DeviceTurns] = {}

    @property
    def running(self) -> int:
        """Computations begun and not ended, on all devices."""
        return sum(turns.running for turns in self._turns.values())

    @property
    def waiting(self) -> int:
        """How many wait for their turn, on all devices."""
        return sum(turns.waiting for turns in self._turns.values())

    def of(self, device_class: str) -> DeviceTurns:
        """The turns of ``device_class``."""
        return self._turns.setdefault(device_class, DeviceTurns(self._most))
