"""admission.status: what the host is doing now, and what it last knew of its workers' health.

Cached state only: the answer never waits for a worker. ``queues``, ``host`` and ``health`` are ours.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from synapse_host.admission.device_turns import Devices
from synapse_host.admission.gate import Gate
from synapse_host.admission.refusals import Refusals
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.errors import StoreFailure
from synapse_host.identity.machine_profile import MachineProfile
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_health import health_summary
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.constraints import Params
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object

#: Of the contract's knobs, the one this version has.
CURRENT_KNOB = "balanced"


class JobCounts(Protocol):
    """The jobs of this process, counted."""

    def to_wire(self) -> Mapping[str, int]:
        """The counters by the contract's names."""
        ...


class AdmissionStatusParams(Params):
    """Takes nothing."""


@value_object
class HostFacts:
    """What only the host itself knows; ``clock`` counts seconds and read ``started_at`` when it started.

    ``max_text_chars`` is the longest text it takes, which a client asks about before it hands in a million of them.
    """

    started_at: float
    clock: Callable[[], float]
    connections: Callable[[], int]
    max_connections: int
    max_text_chars: int

    def to_wire(self) -> dict[str, Any]:
        """Version, process, uptime, connections and what it takes of one text."""
        return {
            "version": importlib.metadata.version("synapse-host"),
            "pid": os.getpid(),
            "uptime_ms": round((self.clock() - self.started_at) * 1000),
            "connections": self.connections(),
            "max_connections": self.max_connections,
            "max_text_chars": self.max_text_chars,
        }


@value_object
class StatusService:
    """Answers with what is known; asks nobody."""

    lanes: LaneTable
    ledger: CertificationLedger
    checks: SelfChecks
    gate: Gate
    devices: Devices
    refusals: Refusals
    jobs: JobCounts
    recent_jobs: Callable[[], Awaitable[list[dict[str, Any]]]]
    machine: MachineProfile
    facts: HostFacts
    module_generation: int
    #: What the store could not be written for when that was last tried; None where it could.
    unwritable: Callable[[], StoreFailure | None] = lambda: None

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("admission.status", "query", AdmissionStatusParams, self.status)]

    async def status(self, params: AdmissionStatusParams, context: RequestContext) -> Reply:
        """The snapshot."""
        now, lanes = self.facts.clock(), list(self.lanes)
        health = [lane.health for lane in lanes]
        recent, store_fault = await self._recent()
        return Reply(
            {
                "module_generation": self.module_generation,
                "machine_profile_hash": self.machine.hash,
                "current_knob": CURRENT_KNOB,
                **self._admission(),
                **self.jobs.to_wire(),
                "jobs_recent": recent,
                **self._counted(lanes),
                "lanes": [self._resident(lane, now) for lane in lanes if lane.state is LaneState.READY],
                "host": self.facts.to_wire(),
                "health": {**health_summary(health), **store_fault, "lanes": [row.to_wire(now) for row in health]},
            }
        )

    async def _recent(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The newest jobs, and what is wrong with the store: that it cannot say, or could not be written of late."""
        try:
            recent, fault = await self.recent_jobs(), self.unwritable()
        except StoreFailure as failure:
            recent, fault = [], failure
        return recent, {} if fault is None else {"degraded": True, "store_fault": fault.message}

    def _admission(self) -> dict[str, Any]:
        devices = self.devices
        return {
            "inline_in_flight_bytes": self.gate.bytes_in_flight,
            "execution_waiters": devices.waiting,
            "inline_in_flight_executions": devices.running,
            "execution_wait_p50_ms": _rounded(devices.waits.percentile(0.5)),
            "execution_wait_p95_ms": _rounded(devices.waits.percentile(0.95)),
            "queues": {
                "control": devices.depth(WorkClass.CONTROL),
                "interactive": devices.depth(WorkClass.INTERACTIVE),
                "bulk": devices.depth(WorkClass.BULK) + devices.depth(WorkClass.JOB),
            },
            "refusals": self.refusals.to_wire(),
        }

    def _counted(self, lanes: list[Lane]) -> dict[str, int]:
        """Every known lane; and of those that a probe certifies, loaded or not, how they stand."""
        gated = [lane for lane in lanes if lane.model.certifiable and lane.model.catalog_id is None]
        outdated = sum(self.ledger.is_outdated(lane.model) for lane in gated)
        return {
            "catalog_lanes": len(lanes),
            "certified_lanes": sum(self.ledger.is_certified(lane.model) for lane in gated),
            "certification_stale": outdated,
            "performance_stale": outdated,
        }

    def _resident(self, lane: Lane, now: float) -> dict[str, Any]:
        model, pace = lane.model, lane.pace
        row = {
            "model_id": model.model_id,
            "fingerprint": model.fingerprint,
            "meeting_deadlines": pace.meets_deadlines(now),
            "p50_start_delay_ms": _rounded(pace.waits.percentile(0.5)),
            "execution_waiters": pace.waiting,
            "inline_in_flight_executions": pace.running,
        }
        if model.checks_itself:
            return row | {
                "certification_required": False,
                "certification_status": "not_required",
                "self_check": self.checks.row(lane).to_wire(),
            }
        outdated = self.ledger.is_outdated(model)
        return row | {
            "machine_profile_hash": self.ledger.key(model)[0],
            "certified": self.ledger.is_certified(model),
            "certification_stale": outdated,
            "performance_stale": outdated,
        }


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 3)
