"""The jobs of this host that have not ended, by the lane that is to compute them. Pure.

The store knows them too; here they can be asked for without waiting, so that nothing changes between the answer and
what is done on it. Jobs of an earlier host are ended at boot, so none is missing.
"""

from __future__ import annotations

from collections.abc import Collection


class OpenJobs:
    """Ids of open jobs, in the order of admission."""

    def __init__(self) -> None:
        self._lanes: dict[str, str] = {}

    def admitted(self, job_id: str, lane_id: str) -> None:
        """A job waits, runs or is paused from now on, for the lane of this id."""
        self._lanes[job_id] = lane_id

    def ended(self, job_id: str) -> None:
        """A job has ended, in whatever way."""
        self._lanes.pop(job_id, None)

    def on(self, lane_ids: Collection[str]) -> list[str]:
        """The jobs that need one of ``lane_ids``."""
        return [job_id for job_id, lane_id in self._lanes.items() if lane_id in lane_ids]
