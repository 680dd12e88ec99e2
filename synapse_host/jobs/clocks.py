"""The three clocks of a job: how long it may run, how long its results are kept, how long it waits for a login. Pure.

Times are milliseconds since the epoch, because they outlive the process. While a job is paused only the resume clock
runs; what was left of its time to run is left when it goes on (wire contract section 9).
"""

from __future__ import annotations

from dataclasses import replace

from synapse_host.values import value_object


@value_object
class ClockLengths:
    """What the settings allow, in milliseconds."""

    execution_ms: int = 86_400_000
    retention_ms: int = 86_400_000
    resume_ms: int = 86_400_000


@value_object
class JobClocks:
    """The times of one job; a paused one has ``paused_at_ms``, one that ended ``terminal_at_ms``."""

    execution_expires_ms: int
    retention_ms: int
    paused_at_ms: int | None = None
    resume_deadline_ms: int | None = None
    terminal_at_ms: int | None = None

    @classmethod
    def started(cls, lengths: ClockLengths, now_ms: int, deadline_ms: int | None = None) -> JobClocks:
        """The clocks of a job admitted now; ``deadline_ms`` shortens its time to run."""
        allowed = lengths.execution_ms if deadline_ms is None else min(deadline_ms, lengths.execution_ms)
        return cls(now_ms + allowed, lengths.retention_ms)

    def paused(self, now_ms: int, resume_ms: int) -> JobClocks:
        """Stop the execution clock and start the resume clock."""
        return replace(self, paused_at_ms=now_ms, resume_deadline_ms=now_ms + resume_ms)

    def resumed(self, now_ms: int) -> JobClocks:
        """Stop the resume clock and let the execution clock go on with what it had left."""
        assert self.paused_at_ms is not None, "only a paused job is resumed"
        late = max(0, now_ms - self.paused_at_ms)
        return replace(
            self, execution_expires_ms=self.execution_expires_ms + late, paused_at_ms=None, resume_deadline_ms=None
        )

    def ended(self, now_ms: int) -> JobClocks:
        """Stop both and start the retention clock."""
        return replace(self, paused_at_ms=None, resume_deadline_ms=None, terminal_at_ms=now_ms)

    def execution_over(self, now_ms: int) -> bool:
        """Whether its time to run is up; never while it is paused or has ended."""
        return self.terminal_at_ms is None and self.paused_at_ms is None and now_ms >= self.execution_expires_ms

    def login_over(self, now_ms: int) -> bool:
        """Whether it was paused for too long."""
        return self.resume_deadline_ms is not None and now_ms >= self.resume_deadline_ms

    def results_over(self, now_ms: int) -> bool:
        """Whether its results need not be kept any more; never before it ended."""
        return self.terminal_at_ms is not None and now_ms >= self.terminal_at_ms + self.retention_ms
