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
    after it. ``continues`` says that the request has had a turn before. ``keeps_back`` are the kinds of bulk work that
    were not there when it was admitted: none that comes later passes it.
    """

    begin: Begin
    work_class: WorkClass = WorkClass.INTERACTIVE
    estimate_ms: float = 0.0
    rest_groups: int = 0
    rest_ms: float = 0.0
    continues: bool = False
    keeps_back: tuple[WorkClass, ...] = ()
    asked_at: float = 0.0
    began_at: float | None = None
