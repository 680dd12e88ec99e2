"""When a lane whose worker keeps failing stops being tried (worker protocol v3, reliability).

Pure. Crashes, protocol faults and hangs each add one strike; two in a row quarantine. Only served work that was
drained to its end clears strikes; loading never does.
"""

from __future__ import annotations

#: Consecutive faults that quarantine a lane.
QUARANTINE_AT = 2


class Strikes:
    """Consecutive faults of one lane."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def quarantined(self) -> bool:
        """True once the limit is reached; only ``clear`` ends it."""
        return self.count >= QUARANTINE_AT

    def fault(self) -> None:
        """A crash, protocol fault or hang."""
        self.count += 1

    def served(self) -> None:
        """Serving work ended with its reply fully read."""
        if not self.quarantined:
            self.count = 0

    def clear(self) -> None:
        """An operator unloaded or reloaded the lane."""
        self.count = 0
