"""One computation that waits for a device, or is on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from synapse_host.admission.work_class import WorkClass

#: Begins one computation; it must not raise, and ``DeviceTurns.end`` must be called when that is over.
Begin = Callable[[], None]


@dataclass(slots=True, eq=False)
class Turn:
    """A computation, one group of rows or one generation, and when it asked and began in seconds.

    ``estimate_ms`` is what it is expected to take; ``rest_groups`` and ``rest_ms`` are what the same request asks for
    after it. ``continues`` says that the request has had a turn before, and ``alone`` that it was admitted while there
    was no bulk: none that comes later passes it.
    """

    begin: Begin
    work_class: WorkClass = WorkClass.INTERACTIVE
    estimate_ms: float = 0.0
    rest_groups: int = 0
    rest_ms: float = 0.0
    continues: bool = False
    alone: bool = False
    asked_at: float = 0.0
    began_at: float | None = None
