"""Time limits that are hardly ever reached: one timer for all of them.

A request sets two: how long its worker may be silent, minutes, and its own deadline, half a minute. Both are lifted
within milliseconds. A timer for each, or a cancel scope, costs a short query a tenth of what host and worker may add to
it; here setting and lifting a limit touches no timer at all, and the one there is moves when it rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class TimeLimits:
    """The limits set by the tasks of one event loop."""

    def __init__(self) -> None:
        self._set: set[Limit | Alarm] = set()
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float) -> Limit:
        """A limit for the block it is entered for."""
        return Limit(self, seconds)

    def watch(self, limit: Limit | Alarm) -> None:
        """Ring for ``limit`` no later than it is due."""
        self._set.add(limit)
        if self._timer is None or limit.due < self._timer.when():
            self._arm(limit.due)

    def lift(self, limit: Limit | Alarm) -> None:
        """Forget ``limit``; a timer set for it rings for nothing."""
        self._set.discard(limit)

    def close(self) -> None:
        """Take the timer back; for the end of whoever set the limits. The event loop would keep it until it rings."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        # In their order also where the loop comes late and finds several due.
        for limit in sorted((limit for limit in self._set if limit.due <= now), key=lambda limit: limit.due):
            self._set.discard(limit)
            limit.reach()
        if self._set:
            self._arm(min(limit.due for limit in self._set))


class Limit:
    """``with limits.limit(seconds):`` interrupts what the block awaits when the time is up.

    Leaving the block then raises ``TimeoutError``; other cancellations pass through unchanged.
    """

    def __init__(self, limits: TimeLimits, seconds: float) -> None:
        self._limits = limits
        self._seconds = seconds
        self._task: asyncio.Task[object] | None = None
        self._cancellations = 0
        self._reached = False
        #: Loop time at which it is reached.
        self.due = 0.0

    def renew(self, seconds: float) -> None:
        """Let the time be ``seconds`` from now."""
        self.due = asyncio.get_running_loop().time() + seconds
        self._limits.watch(self)

    def reach(self) -> None:
        """The time is up."""
        assert self._task is not None
        self._reached = True
        self._task.cancel()

    def __enter__(self) -> Limit:
        task = asyncio.current_task()
        assert task is not None, "a time limit needs a task to interrupt"
        self._task, self._cancellations = task, task.cancelling()
        self.renew(self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._limits.lift(self)
        if self._reached and self._task is not None:
            # Somebody else may have cancelled the task as well; that one goes on.
            others = self._task.uncancel() > self._cancellations
            if not others and kind is not None and issubclass(kind, asyncio.CancelledError):
                raise TimeoutError from error


class Alarm:
    """Calls ``ring`` from the event loop when the time last set is up, unless it was lifted before."""

    def __init__(self, limits: TimeLimits, ring: Callable[[], None]) -> None:
        self._limits = limits
        self._ring = ring
        #: Loop time at which it is reached.
        self.due = 0.0

    def set(self, seconds: float) -> None:
        """Let the time be ``seconds`` from now."""
        self.due = asyncio.get_running_loop().time() + seconds
        self._limits.watch(self)

    def lift(self) -> None:
        """Let it not ring."""
        self._limits.lift(self)

    def reach(self) -> None:
        """The time is up."""
        self._ring()
