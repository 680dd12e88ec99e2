"""The gate a request passes before it may cost anything: holds the byte account and turns refusals into errors."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from synapse_host.admission.admission import Refused, decide_bytes, decide_time
from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.prediction import FREE, Prediction, Work
from synapse_host.errors import DeadlineExceeded, InvalidRequest, QueueFull, SynapseError
from synapse_host.values import value_object

#: Suggested wait after a refusal for bytes: about one bulk group on a CPU lane.
BYTES_RETRY_MS = 250


@value_object
class Budget:
    """A request's own time: ``deadline_at`` is monotonic seconds, ``deadline_ms`` and ``max_queue_ms`` as asked.

    ``deadline_named`` is whether the request named the deadline itself.
    """

    deadline_at: float
    deadline_ms: int
    max_queue_ms: int
    deadline_named: bool = True

    def remaining_ms(self, now: float) -> float:
        """Milliseconds left at monotonic time ``now``; may be negative."""
        return (self.deadline_at - now) * 1000.0


class ByteHold:
    """A request's share of the byte budget: given back when everyone it was shared with has released it.

    ``with gate.hold(size) as hold:`` releases it at the end of the block.
    """

    def __init__(self, gate: Gate, size: int) -> None:
        self._gate = gate
        self._size = size
        self._holders = 1

    def __enter__(self) -> ByteHold:
        return self

    def __exit__(self, *fault: object) -> None:
        self.release()

    def share(self) -> None:
        """One more needs the bytes, and will release them: a thread that nobody waits for any more."""
        self._holders += 1

    def release(self) -> None:
        """One of the holders is done."""
        self._holders -= 1
        if not self._holders:
            self._gate.give_back(self._size)


class Gate:
    """Admits requests against one byte budget shared by all lanes, and each against its device.

    Single-threaded: every call is made on the event loop, so decision and booking cannot be torn apart.
    """

    def __init__(self, *, byte_budget: int, clock: Callable[[], float]) -> None:
        self._byte_budget = byte_budget
        self._clock = clock
        self._groups_waiting: deque[asyncio.Event] = deque()
        self._group_bytes = 0
        self.bytes_in_flight = 0

    def hold(self, size: int) -> ByteHold:
        """Take ``size`` bytes of the budget; whoever holds them releases them.

        Raises:
            InvalidRequest: the request could never fit.
            QueueFull: no room for its bytes now.

        """
        refused = decide_bytes(size, in_flight=self.bytes_in_flight, budget=self._byte_budget)
        if refused is not None:
            raise _bytes_refusal(refused)
        self.bytes_in_flight += size
        return ByteHold(self, size)

    def admit(self, device: DeviceTurns, work: Work, budget: Budget) -> Prediction:
        """Let ``work`` ask for its turn on ``device``; it must do so before anything else runs on the event loop.

        Raises:
            DeadlineExceeded: it would start or finish too late.

        """
        # A query that finds its device free is the common case, and the one that must not be held up.
        load = FREE if device.free and len(work.group_ms) == 1 else device.load()
        remaining_ms = budget.remaining_ms(self._clock())
        decision = decide_time(
            work,
            load,
            max_queue_ms=budget.max_queue_ms,
            remaining_ms=remaining_ms,
            deadline_named=budget.deadline_named,
        )
        if isinstance(decision, Refused):
            raise _time_refusal(decision, budget)
        return decision

    @asynccontextmanager
    async def executing_group(self, size: int) -> AsyncIterator[None]:
        """Hold the bytes of one group of a durable job for the length of the block, waiting until they fit.

        Jobs hold at most half of the budget together, in the order they came, so that they never make the host refuse
        a request. A group larger than that runs when it is the only one.
        """
        size = min(size, self._byte_budget)
        if self._groups_waiting or not self._group_fits(size):
            turn = asyncio.Event()
            self._groups_waiting.append(turn)
            try:
                while self._groups_waiting[0] is not turn or not self._group_fits(size):
                    turn.clear()
                    await turn.wait()
            finally:
                self._groups_waiting.remove(turn)
                self._wake_groups()
        self.bytes_in_flight += size
        self._group_bytes += size
        try:
            yield
        finally:
            self._group_bytes -= size
            self.give_back(size)

    def give_back(self, size: int) -> None:
        """Bytes that were held are free again."""
        self.bytes_in_flight -= size
        self._wake_groups()

    def _group_fits(self, size: int) -> bool:
        if self.bytes_in_flight + size > self._byte_budget:
            return False
        return self._group_bytes == 0 or self._group_bytes + size <= self._byte_budget // 2

    def _wake_groups(self) -> None:
        if self._groups_waiting:
            self._groups_waiting[0].set()


def _bytes_refusal(refused: Refused) -> SynapseError:
    if refused.reason == "never_fits":
        return InvalidRequest(
            f"the request holds {refused.predicted:.0f} bytes and the host admits at most {refused.limit:.0f} at once; "
            "split it",
            details={"bytes": int(refused.predicted), "byte_budget": int(refused.limit)},
        )
    return QueueFull(
        f"{refused.predicted:.0f} bytes would be in flight and the budget is {refused.limit:.0f}",
        retry_after_ms=BYTES_RETRY_MS,
    )


def _time_refusal(refused: Refused, budget: Budget) -> SynapseError:
    if refused.reason == "queue":
        return DeadlineExceeded(
            f"the request would start in {refused.predicted:.0f} ms, past its max_queue_ms of {budget.max_queue_ms}; "
            "raise max_queue_ms or send it when the queue is shorter"
        )
    left = _shown(max(0.0, refused.limit))
    return DeadlineExceeded(
        f"the request would finish in {_shown(refused.predicted)} ms, and {left} ms are left of its deadline_ms of "
        f"{budget.deadline_ms}; raise deadline_ms"
    )


def _shown(milliseconds: float) -> str:
    """To a tenth where that tells two apart."""
    return f"{milliseconds:.{0 if milliseconds >= 10 else 1}f}"
