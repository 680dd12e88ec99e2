"""All lanes of the host, found by id or by fingerprint."""

from __future__ import annotations

from collections.abc import Iterator

from synapse_host.errors import SubstitutionRejected, UnknownModel
from synapse_host.lanes.lane import Lane


class LaneTable:
    """The registered models and the lane of each."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(sorted(self._lanes.values(), key=lambda lane: lane.model.model_id))

    def put(self, lane: Lane) -> None:
        """Register ``lane``, in the place of the one with its id where there is one."""
        self._lanes[lane.model.model_id] = lane

    def discard(self, model_id: str) -> None:
        """Forget a lane."""
        self._lanes.pop(model_id, None)

    def find(self, model_id: str) -> Lane | None:
        """The lane of ``model_id``, or None."""
        return self._lanes.get(model_id)

    def get(self, model_id: str) -> Lane:
        """The lane of ``model_id``; raises ``UnknownModel`` naming it and what there is."""
        lane = self._lanes.get(model_id)
        if lane is None:
            known = ", ".join(sorted(self._lanes)) or "none"
            raise UnknownModel(
                f"no model {model_id!r}; loaded were {known}. Use one of them, or load it with model.load",
                details={"model_id": model_id},
            )
        return lane

    def serves(self, fingerprint: str) -> bool:
        """Whether a lane has this identity."""
        return any(lane.model.fingerprint == fingerprint for lane in self._lanes.values())

    def of_fingerprint(self, fingerprint: str) -> Lane:
        """The lane with this identity; raises ``SubstitutionRejected``, since any other would be a substitute."""
        for lane in self._lanes.values():
            if lane.model.fingerprint == fingerprint:
                return lane
        raise SubstitutionRejected(
            f"no lane has fingerprint {fingerprint!r}; models.list shows those there are",
            details={"lane_id": None, "required_fingerprint": fingerprint},
        )
