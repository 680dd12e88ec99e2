"""Which PROGRESS frames of one request are lawful. Pure; only an accepted frame renews the silence window."""

from __future__ import annotations

from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import ProgressReport

_SETUP, _INFERENCE, _CONTROL = "setup", "inference", "control"

#: Operations that change residency and compute nothing: their progress, and no other's, is of phase ``control``.
CONTROL_OPERATIONS = frozenset({"admit", "evict", "unload"})


class ProgressRule:
    """The progress of one request: counters strictly grow, and setup never follows inference.

    Make one per request; a frame of an earlier request or connection carries another ``req_id`` and is refused.
    """

    def __init__(self, req_id: str, operation: str) -> None:
        self._req_id = req_id
        self._operation = operation
        self._completed = 0
        self._phase = _SETUP

    def accept(self, report: ProgressReport) -> None:
        """Take one report; raises ``ProtocolFault`` naming the rule it breaks."""
        if report.req_id != self._req_id:
            raise ProtocolFault(f"PROGRESS is for request {report.req_id!r} while {self._req_id!r} is in flight")
        if report.completed <= self._completed:
            raise ProtocolFault(
                f"PROGRESS of {self._req_id!r} completed {report.completed} after {self._completed}; it must grow"
            )
        self._check_phase(report.phase)
        self._completed, self._phase = report.completed, report.phase

    def _check_phase(self, phase: str) -> None:
        # A worker asks this of every report of its plugin, also of those that are never written.
        lawful = (_CONTROL,) if self._operation in CONTROL_OPERATIONS else (_SETUP, _INFERENCE)
        if phase not in lawful:
            raise ProtocolFault(
                f"PROGRESS of {self._req_id!r} names phase {phase!r}, no phase of {self._operation!r}, which has "
                f"{' and '.join(lawful)}"
            )
        if (self._phase, phase) == (_INFERENCE, _SETUP):
            raise ProtocolFault(f"PROGRESS of {self._req_id!r} went back from {_INFERENCE!r} to {_SETUP!r}")
