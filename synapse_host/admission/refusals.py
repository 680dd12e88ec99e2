"""How often inference was refused, with which code and when last (``admission.status``). Pure, the clock injected."""

from __future__ import annotations

from collections.abc import Callable


class Refusals:
    """Counts since the process started; ``now_ms`` is the time of day."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._counted: dict[str, tuple[int, int]] = {}

    def note(self, code: str) -> None:
        """One more request was refused with ``code``."""
        count, _ = self._counted.get(code, (0, 0))
        self._counted[code] = count + 1, self._now_ms()

    def to_wire(self) -> dict[str, dict[str, int]]:
        """By code."""
        return {code: {"count": count, "last_at_ms": at} for code, (count, at) in sorted(self._counted.items())}
