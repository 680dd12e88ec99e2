"""When a lane whose worker keeps failing stops being tried (worker protocol v3, reliability). Pure, the clock injected.

Each crash, protocol fault or hang is one strike; two in a row quarantine. Only served work that was drained to its end
clears strikes: loading, PING, admission and eviction never do, nor does a caller's deadline, and unloading ends a
quarantine but takes no single strike back. How long a quarantine lasts is the lane's policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from synapse_host.errors import EngineCrashed, ProbeRequired, SynapseError
from synapse_host.values import value_object

#: Consecutive faults that quarantine a lane.
QUARANTINE_AT = 2


@value_object
class QuarantinePolicy:
    """``cool_down_s`` after which a quarantined lane may be tried anew, without strikes; None: only when released."""

    cool_down_s: float | None


#: Models an operator loaded: ``probe_required`` until unloaded, loaded or probed again (reading 28).
FREE_FORM = QuarantinePolicy(None)
#: Models of the catalog: a fixed ten minutes (wire contract, engine_crashed).
CATALOG = QuarantinePolicy(600.0)


class Strikes:
    """Consecutive faults of one lane."""

    def __init__(self, policy: QuarantinePolicy = FREE_FORM, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._count = 0
        #: When the quarantine ends by itself; None where there is none, or none that does.
        self._until: float | None = None

    @property
    def count(self) -> int:
        """Strikes that nothing has cleared."""
        self._end_cool_down()
        return self._count

    @property
    def quarantined(self) -> bool:
        """Whether the lane is not to be tried."""
        return self.count >= QUARANTINE_AT

    @property
    def cool_down_ms(self) -> int | None:
        """Milliseconds until a quarantine ends by itself, at least one; None where there is none, or none that does."""
        if not self.quarantined or self._until is None:
            return None
        return max(1, math.ceil((self._until - self._clock()) * 1000))

    def fault(self) -> None:
        """A crash, protocol fault or hang. One during a cool-down does not make it longer."""
        before = self.count
        self._count += 1
        if before < QUARANTINE_AT <= self._count and self._policy.cool_down_s is not None:
            self._until = self._clock() + self._policy.cool_down_s

    def served(self) -> None:
        """Serving work ended with its reply fully read."""
        if not self.quarantined:
            self._clear()

    def release(self) -> None:
        """An operator unloaded the lane, or a probe found its numbers right: no longer quarantined."""
        if self.quarantined:
            self._clear()

    def refusal(self, lane_id: str) -> SynapseError | None:
        """The error for whoever asks the quarantined lane ``lane_id``; None while it may be tried."""
        if not self.quarantined:
            return None
        failed = f"model {lane_id!r} is quarantined after {self._count} failures of its worker in a row"
        details = {"lane_id": lane_id, "quarantined": True}
        wait_ms = self.cool_down_ms
        if wait_ms is None:
            return ProbeRequired(f"{failed}; unload and load it again", details=details)
        return EngineCrashed(
            f"{failed}; it is tried again in {wait_ms / 1000:.0f} s, or at once when it is unloaded",
            details=details,
            retry_after_ms=wait_ms,
        )

    def _end_cool_down(self) -> None:
        if self._until is not None and self._clock() >= self._until:
            self._clear()

    def _clear(self) -> None:
        self._count, self._until = 0, None
