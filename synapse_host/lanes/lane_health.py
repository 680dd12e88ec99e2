"""What is known of each lane's health, from what was noted before (reading 10). Pure.

A ``Pulse`` is the last PONG of a worker. The summary has the names of the original's health snapshot (original facts
1.9); its crash window is the strikes that nothing has cleared yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synapse_host.values import value_object


@value_object
class Pulse:
    """What a worker said of itself ``at`` a second of the host's clock; ``fresh_rss_mib`` is its first such figure."""

    at: float
    rss_mib: int
    fresh_rss_mib: int
    models_loaded: int
    placement_share: float | None = None


@value_object
class LaneHealth:
    """One lane as the host knows it; what only a worker has is None while there is none or it has not said.

    ``dims`` is 0 for a model that makes no vectors.
    """

    model_id: str
    state: str
    backend: str
    device_class: str
    strikes: int
    quarantined: bool
    rows_computed: int
    recycled: int
    worker_pid: int | None = None
    dims: int | None = None
    pulse: Pulse | None = None
    #: The padded lengths that are compiled, where they are compiled one by one.
    resident_shapes: tuple[int, ...] | None = None

    def to_wire(self, now: float) -> dict[str, Any]:
        """The lane's row at ``now``; ages are milliseconds, memory MiB."""
        pulse = self.pulse
        return {
            "model_id": self.model_id,
            "state": self.state,
            "backend": self.backend,
            "device_class": self.device_class,
            **({} if self.dims == 0 else {"dims": self.dims}),
            "worker_pid": self.worker_pid,
            "rss_mib": None if pulse is None else pulse.rss_mib,
            "placement_share": None if pulse is None else pulse.placement_share,
            "last_ping_age_ms": None if pulse is None else round((now - pulse.at) * 1000),
            "strikes": self.strikes,
            "quarantined": self.quarantined,
            "rows_computed": self.rows_computed,
            "recycled": self.recycled,
            **({} if self.resident_shapes is None else {"resident_shapes": list(self.resident_shapes)}),
        }


def health_summary(lanes: Sequence[LaneHealth]) -> dict[str, Any]:
    """The lanes counted; ``degraded`` says that a lane failed to load or is not to be tried."""
    shares = [lane.pulse.placement_share for lane in lanes if lane.pulse and lane.pulse.placement_share is not None]
    return {
        "worker_connected": any(lane.worker_pid is not None for lane in lanes),
        "tracked_models": len(lanes),
        "loaded_worker_models": sum(lane.state == "ready" for lane in lanes),
        "crash_count_window": sum(lane.strikes for lane in lanes),
        "quarantined_models": [lane.model_id for lane in lanes if lane.quarantined],
        "degraded": any(lane.quarantined or lane.state == "failed" for lane in lanes),
        **({"placement_share": min(shares)} if shares else {}),
    }


def grown_too_large(pulse: Pulse, limit_mib: int) -> bool:
    """Whether a worker holds more than ``limit_mib`` (0: no limit) that a new one would not hold.

    One that was above the limit when it was new would only be replaced by another such.
    """
    return 0 < limit_mib < pulse.rss_mib and pulse.fresh_rss_mib <= limit_mib
