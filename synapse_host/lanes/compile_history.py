"""Whether a wait that ran out was spent on a compilation. Pure; times are monotonic seconds.

A request whose deadline expires while a shape is compiled is told ``shape_compiling`` and not ``deadline_exceeded``:
the model is there and a retry may find its shape ready. That is decided for each wait by itself, from the compilations
that overlapped it (wire contract section 2).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from synapse_host.values import value_object

#: Compilations remembered; a wait that saw more of them is told that a shape was compiled, though not which.
REMEMBERED = 16


@value_object
class _Compilation:
    shape: int
    began: float
    ended: float


@dataclass(slots=True)
class CompileHistory:
    """The compilations of one worker, the running one and the last ``REMEMBERED`` before it."""

    _running: tuple[int, float] | None = None
    _past: deque[_Compilation] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _forgotten_until: float | None = None

    def began(self, shape: int, now: float) -> None:
        """The worker began to compile the shape of ``shape`` positions."""
        self._running = (shape, now)

    def ended(self, now: float) -> None:
        """It is done, or the worker is gone."""
        if self._running is None:
            return
        shape, began = self._running
        if len(self._past) == REMEMBERED:
            self._forgotten_until = self._past[0].ended
        self._past.append(_Compilation(shape, began, now))
        self._running = None

    def blocking(self, wanted: int, since: float) -> int | None:
        """The shape whose compilation a wait for ``wanted`` since ``since`` met; None when it met none.

        The running one first, then the latest that overlapped the wait, then ``wanted`` itself where compilations of
        that time are forgotten.
        """
        if self._running is not None:
            return self._running[0]
        for past in reversed(self._past):
            if past.ended > since:
                return past.shape
        if self._forgotten_until is not None and self._forgotten_until > since:
            return wanted
        return None
