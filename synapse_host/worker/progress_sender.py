"""The ``progress`` callable a hook gets: lawful reports become PROGRESS frames, at a bounded rate."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence

from synapse_host.hookspecs import Phase
from synapse_host.worker_protocol.messages import Message, ProgressReport
from synapse_host.worker_protocol.progress import ProgressRule

#: Least time between two PROGRESS frames. A short call then costs no frame at all, and against windows of 120 s and
#: more the delay of a renewal does not count.
LEAST_INTERVAL_S = 0.25


class ProgressSender:
    """Reports for one request. A report that breaks the rules raises ``ProtocolFault`` into the hook that made it."""

    def __init__(
        self,
        send: Callable[[Message], None],
        req_id: str,
        operation: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._req_id = req_id
        self._rule = ProgressRule(req_id, operation)
        self._clock = clock
        self._last = clock()

    def __call__(self, completed: int, phase: Phase, token_ids: Sequence[int] = ()) -> None:
        """Say that ``completed`` units are done; ``token_ids`` has no place on the wire (reading 33)."""
        report = ProgressReport(self._req_id, operator.index(completed), phase)
        self._rule.accept(report)
        now = self._clock()
        if now - self._last >= LEAST_INTERVAL_S:
            self._last = now
            self._send(report)
