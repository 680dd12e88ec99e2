"""The gate a request passes before it may cost anything: holds the byte account and turns refusals into errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from synapse_host.admission.admission import Admitted, Load, Refused, Request, decide
from synapse_host.errors import DeadlineExceeded, InvalidRequest, QueueFull, SynapseError

#: Suggested wait after a refusal for bytes: about one bulk group on a CPU lane.
BYTES_RETRY_MS = 250


@dataclass(frozen=True, slots=True)
class Budget:
    """A request's own time: ``deadline_at`` is monotonic seconds, ``deadline_ms`` and ``max_queue_ms`` as asked."""

    deadline_at: float
    deadline_ms: int
    max_queue_ms: int

    def remaining_ms(self, now: float) -> float:
        """Milliseconds left at monotonic time ``now``; may be negative."""
        return (self.deadline_at - now) * 1000.0


class Gate:
    """Admits requests against one byte budget shared by all lanes.

    Single-threaded: every call is made on the event loop, so decision and booking cannot be torn apart.
    """

    def __init__(self, *, byte_budget: int, estimate_ms: float, clock: Callable[[], float]) -> None:
        self._byte_budget = byte_budget
        self._estimate_ms = estimate_ms
        self._clock = clock
        self.bytes_in_flight = 0

    @contextmanager
    def admitted(self, size: int, budget: Budget, *, waiting: int, permit_free: bool) -> Iterator[Admitted]:
        """Hold ``size`` bytes for the length of the block.

        Raises:
            InvalidRequest: the request could never fit.
            QueueFull: no room for its bytes now.
            DeadlineExceeded: it would start or finish too late.

        """
        load = Load(self.bytes_in_flight, self._byte_budget, waiting, permit_free, self._estimate_ms)
        request = Request(size, budget.max_queue_ms, budget.remaining_ms(self._clock()))
        decision = decide(request, load)
        if isinstance(decision, Refused):
            raise _refusal(decision, budget)
        self.bytes_in_flight += size
        try:
            yield decision
        finally:
            self.bytes_in_flight -= size


def _refusal(refused: Refused, budget: Budget) -> SynapseError:
    if refused.reason == "never_fits":
        return InvalidRequest(
            f"the request holds {refused.predicted:.0f} bytes and the host admits at most {refused.limit:.0f} at once; "
            "split it",
            details={"bytes": int(refused.predicted), "byte_budget": int(refused.limit)},
        )
    if refused.reason == "bytes":
        return QueueFull(
            f"{refused.predicted:.0f} bytes would be in flight and the budget is {refused.limit:.0f}",
            retry_after_ms=BYTES_RETRY_MS,
        )
    if refused.reason == "queue":
        return DeadlineExceeded(
            f"the request would start in {refused.predicted:.0f} ms, past its max_queue_ms of {budget.max_queue_ms}; "
            "raise max_queue_ms or send it when the queue is shorter"
        )
    return DeadlineExceeded(
        f"the request would finish in {refused.predicted:.0f} ms, past its deadline_ms of {budget.deadline_ms}; "
        "raise deadline_ms"
    )
