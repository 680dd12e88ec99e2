"""How the work of one lane gets on: what waits and computes, how long the last waited, whether deadlines are met."""

from __future__ import annotations

from synapse_host.admission.rolling import Waits

#: Seconds for which a missed deadline is held against a lane.
REMEMBERED_S = 60.0


class LanePace:
    """Counts of one lane's groups. Single-threaded: the event loop's."""

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.waits = Waits()
        self._missed_at = float("-inf")

    def asked(self) -> None:
        """A group asks for its turn."""
        self.waiting += 1

    def withdrawn(self) -> None:
        """It does so no more."""
        self.waiting -= 1

    def began(self, wait_ms: float) -> None:
        """Its turn has come."""
        self.waiting -= 1
        self.running += 1
        self.waits.note(wait_ms)

    def ended(self) -> None:
        """It is over."""
        self.running -= 1

    def missed(self, now: float) -> None:
        """An admitted request did not end in time."""
        self._missed_at = now

    def meets_deadlines(self, now: float) -> bool:
        """Whether none has done so lately."""
        return now - self._missed_at > REMEMBERED_S
