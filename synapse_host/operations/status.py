"""admission.status: what the host is doing now, and what it last knew of its workers' health.

Cached state only: the answer never waits for a worker. The contract's counters of jobs are left out until there are
jobs to count; ``host`` and ``health`` are ours.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from synapse_host.admission.device_turns import Devices
from synapse_host.admission.gate import Gate
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.identity.machine_profile import MachineProfile
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_health import health_summary
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.constraints import Params
from synapse_host.operations.registry import Method, Reply, RequestContext


class AdmissionStatusParams(Params):
    """Takes nothing."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What only the host itself knows; ``clock`` counts seconds and read ``started_at`` when it started."""

    started_at: float
    clock: Callable[[], float]
    connections: Callable[[], int]
    max_connections: int

    def to_wire(self) -> dict[str, Any]:
        """Version, process, uptime and connections."""
        return {
            "version": importlib.metadata.version("synapse-host"),
            "pid": os.getpid(),
            "uptime_ms": round((self.clock() - self.started_at) * 1000),
            "connections": self.connections(),
            "max_connections": self.max_connections,
        }


@dataclass(frozen=True, slots=True)
class StatusService:
    """Answers with what is known; asks nobody."""

    lanes: LaneTable
    ledger: CertificationLedger
    gate: Gate
    devices: Devices
    machine: MachineProfile
    facts: HostFacts
    module_generation: int
    recent_jobs: Callable[[], Awaitable[list[dict[str, Any]]]]

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("admission.status", "query", AdmissionStatusParams, self.status)]

    async def status(self, params: AdmissionStatusParams, context: RequestContext) -> Reply:
        """The snapshot."""
        now, lanes = self.facts.clock(), list(self.lanes)
        health = [lane.health for lane in lanes]
        return Reply(
            {
                "module_generation": self.module_generation,
                "machine_profile_hash": self.machine.hash,
                "inline_in_flight_bytes": self.gate.bytes_in_flight,
                "execution_waiters": self.devices.waiting,
                "inline_in_flight_executions": self.devices.running,
                # Every known lane, and of those that a probe certifies the certified ones, loaded or not.
                "catalog_lanes": len(lanes),
                "certified_lanes": sum(map(self._certified, lanes)),
                "lanes": [self._resident(lane) for lane in lanes if lane.state is LaneState.READY],
                "jobs_recent": await self.recent_jobs(),
                "host": self.facts.to_wire(),
                "health": {**health_summary(health), "lanes": [row.to_wire(now) for row in health]},
            }
        )

    def _resident(self, lane: Lane) -> dict[str, Any]:
        return {
            "model_id": lane.model.model_id,
            "fingerprint": lane.model.fingerprint,
            "certified": self._certified(lane),
        }

    def _certified(self, lane: Lane) -> bool:
        outcome = self.ledger.certification(lane.model)
        return outcome is not None and outcome.status == "certified"
