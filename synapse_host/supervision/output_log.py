"""What workers print, in the host's log: tagged, freed of control characters, and so many lines a second at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from synapse_host.supervision.line_budget import LineBudget

_log = logging.getLogger("synapse_host.worker_output")
#: Lines a second of all workers together (original facts 1.9).
LINES_PER_SECOND = 50
#: Seconds until lines left out are mentioned, together.
_SAY_AFTER_S = 1.0
#: What could move a terminal's cursor or begin another line of the log.
_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160), 0x2028, 0x2029) if code != ord("\t")}


class OutputLog:
    """Shared by all workers of a host; call it on the event loop."""

    def __init__(self, clock: Callable[[], float], lines_per_second: int = LINES_PER_SECOND) -> None:
        self._budget = LineBudget(lines_per_second, clock)
        self._will_say = False

    def write(self, worker_id: str, stream: str, lines: Iterable[bytes]) -> None:
        """Log ``lines`` of one worker; those past the limit are left out, and that is said within a second."""
        for line in lines:
            if self._budget.take():
                text = line.decode(errors="replace").rstrip().translate(_CONTROLS)
                _log.info("%s %s: %s", worker_id, stream, text)
            elif not self._will_say:
                self._will_say = True
                asyncio.get_running_loop().call_later(_SAY_AFTER_S, self.say_left_out)

    def say_left_out(self) -> None:
        """Say how many lines were left out since this was last said, if any were."""
        self._will_say = False
        if refused := self._budget.refused():
            _log.warning("%d lines of workers' output were left out: too many a second", refused)
