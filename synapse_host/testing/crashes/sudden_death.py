"""Kills the calling process at a chosen one of its durable steps: for tests that look at what is left.

Every call that changes the disk is a step. Counting them is the same in every life that does the same things.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What changes the disk, as the model cache calls it.
CACHE_STEPS: tuple[tuple[Any, str], ...] = (
    (os, "open"),
    (os, "write"),
    (os, "fsync"),
    (Path, "replace"),
    (Path, "rename"),
    (Path, "unlink"),
)

_real_write = os.write


@dataclass(frozen=True, slots=True)
class Life:
    """What a child did: the operations it finished, the steps it took, and the step it died at, if it did."""

    finished: list[str]
    steps: list[str]
    died: str | None


class Deaths:
    """Counts the steps of this process and kills it at step ``at``; tells the parent over ``report``."""

    def __init__(self, at: int | None, report: int) -> None:
        self._at = at
        self._report = report
        self._count = 0
        #: What is being done, for the names of the steps.
        self.operation = ""

    def step(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """``call``, with a step before it and one after."""

        def counted(*arguments: Any, **options: Any) -> Any:
            self._pass(f"{self.operation}: before {name}")
            result = call(*arguments, **options)
            self._pass(f"{self.operation}: after {name}")
            return result

        return counted

    def done(self, operation: str) -> None:
        """Tell that an operation is finished."""
        _real_write(self._report, f"done {operation}\n".encode())

    def _pass(self, label: str) -> None:
        self._count += 1
        if self._at is None:
            _real_write(self._report, f"step {label}\n".encode())
        elif self._count == self._at:
            _real_write(self._report, f"died {label}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def dying(deaths: Deaths, steps: Sequence[tuple[Any, str]] = CACHE_STEPS) -> Iterator[None]:
    """Make every call of ``steps`` one at which ``deaths`` may strike."""
    saved = [(owner, name, getattr(owner, name)) for owner, name in steps]
    for owner, name, call in saved:
        setattr(owner, name, deaths.step(name, call))
    try:
        yield
    finally:
        for owner, name, call in saved:
            setattr(owner, name, call)


def one_life(at: int | None, live: Callable[[Deaths], None]) -> Life:
    """Fork a child that lives until step ``at``; without one it lives to the end and tells every step.

    Raises ``AssertionError`` where it neither died there nor came to its end.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            live(Deaths(at, writing))
            os._exit(0)
        except BaseException as fault:
            _real_write(2, f"step {at}: {fault!r}\n".encode())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        told = [line.partition(" ") for line in lines.read().splitlines()]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "an operation failed instead of dying"
    by_kind = {kind: [rest for word, _, rest in told if word == kind] for kind in ("done", "step", "died")}
    return Life(by_kind["done"], by_kind["step"], by_kind["died"][0] if by_kind["died"] else None)
