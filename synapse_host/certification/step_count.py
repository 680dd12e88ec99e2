"""How far a step of a probe is, for whoever waits for it: minutes, where a device is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Told how much of a step is done, of how much.
Count: TypeAlias = Callable[[int, int], None]


def uncounted(done: int, of: int) -> None:
    """Nobody asks."""


def counter(count: Count, of: int) -> Callable[[int], None]:
    """Adds up what is done of ``of``, never past it, and tells ``count`` each time."""
    done = 0

    def add(more: int) -> None:
        nonlocal done
        done = min(done + more, of)
        count(done, of)

    return add
