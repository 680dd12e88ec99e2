"""The background task that keeps what is known of every worker's health fresh (reading 10)."""

from __future__ import annotations

import anyio

from synapse_host.lanes.lane_table import LaneTable


class HealthRefresh:
    """Takes the pulse of every lane's worker each ``interval_s`` seconds, and at once when woken."""

    def __init__(self, lanes: LaneTable, interval_s: float) -> None:
        self._lanes = lanes
        self._interval_s = interval_s
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Take every pulse now: a worker has just loaded its model."""
        self._woken.set()

    async def run(self) -> None:
        """Refresh until cancelled. A worker that does not answer holds up nobody else."""
        while True:
            for lane in self._lanes:
                lane.refresh_health()
            with anyio.move_on_after(self._interval_s):
                await self._woken.wait()
            self._woken = anyio.Event()
