"""What a job that is waited for is told to be doing: each new state or step at once, how far it is now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds between two lines about the same step.
QUIET_S = 5.0


class StateLines:
    """Hears the statuses of one job and writes the lines of them that are worth one."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._doing: tuple[object, ...] = ()
        self._wrote_at = 0.0

    def __call__(self, status: Mapping[str, Any]) -> None:
        """Take in the next status."""
        step = status.get("step") or {}
        doing = (status["state"], step.get("model_id"), step.get("step"))
        now = self._clock()
        if doing == self._doing and now - self._wrote_at < QUIET_S:
            return
        self._doing, self._wrote_at = doing, now
        self._write(_line(str(status["state"]), step))


def _line(state: str, step: Mapping[str, Any]) -> str:
    if not step:
        return state
    far = f", {step['done']} of {step['of']}" if "of" in step else ""
    return f"{state}: {step['step']}{far}"
