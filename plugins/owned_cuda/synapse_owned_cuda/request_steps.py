"""What one request tells of its progress: inputs prepared, then the forward, then what the engine counts.

A call of a long forward says nothing until its segment ends, and the time before it is another phase with a longer
silence: so ``setup`` is told when the first inputs are on the device, and ``inference`` right before anything runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from synapse_host.hookspecs import Phase, Progress


class RequestSteps:
    """A ``Progress`` of one request that counts two steps of its own before those it passes on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._told = 0

    def prepared(self) -> None:
        """The inputs of a call are on the device; told once, before the request's first forward."""
        if not self._told:
            self._tell("setup")
            self._tell("inference")

    def __call__(self, completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None:
        self._tell(phase, token_ids)

    def _tell(self, phase: Phase, token_ids: Sequence[int] = ()) -> None:
        self._told += 1
        self._progress(self._told, phase, token_ids)
