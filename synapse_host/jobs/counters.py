"""How many jobs this process admitted and how they ended (``admission.status``, wire contract section 5).

Every kind of job that outlives its request counts here, downloads too: minted when it is admitted, completed or failed
when it ends. One of an earlier process that ends in this one is inherited as well, so that the identity holds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class JobCounters:
    """Counts since the process started. Single-threaded: the event loop's."""

    minted: int = 0
    completed: int = 0
    failed: int = 0
    inherited: int = 0

    @property
    def open(self) -> int:
        """Jobs admitted and not ended, derived."""
        return max(0, self.minted + self.inherited - self.completed - self.failed)

    def admitted(self, jobs: int = 1) -> None:
        """Jobs were admitted."""
        self.minted += jobs

    def ended(self, *, completed: bool, inherited: bool = False, jobs: int = 1) -> None:
        """Jobs ended; ``inherited`` when an earlier process had admitted them."""
        self.inherited += jobs if inherited else 0
        if completed:
            self.completed += jobs
        else:
            self.failed += jobs

    def to_wire(self) -> dict[str, int]:
        """The counters by the contract's names."""
        return {
            "jobs_minted": self.minted,
            "jobs_completed": self.completed,
            "jobs_failed": self.failed,
            "jobs_inherited": self.inherited,
            "jobs_open": self.open,
        }
