"""What a lane does for its worker between requests: take its pulse, and replace it when it has grown too large.

Neither counts as a request: no turn of the device, no row, no strike cleared. A PING waits until the worker has nothing
else to do, and one that is not answered is silence like any other (readings 10 and 11).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count

from synapse_host.errors import EngineCrashed
from synapse_host.lanes.lane_health import Pulse, grown_too_large
from synapse_host.lanes.residency import LaneRuntime, Residency
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker

_log = logging.getLogger(__name__)
#: Where a worker's size is limited, a pulse older than this many seconds is taken again after a request.
STALE_S = 1.0


class Upkeep:
    """Keeps the worker of one lane; ``held`` says whether anybody uses the lane."""

    def __init__(self, residency: Residency, runtime: LaneRuntime, held: Callable[[], bool]) -> None:
        self._residency = residency
        self._runtime = runtime
        self._held = held
        self._numbers = count(1)
        self._asked: Worker | None = None
        #: The worker that said the pulse, so that a new one never shows the figures of the last.
        self._of: Worker | None = None
        self._pulse: Pulse | None = None
        #: The last worker that would not say one; that is logged once.
        self._refused: Worker | None = None
        self._warned = False

    @property
    def pulse(self) -> Pulse | None:
        """The last pulse of the worker that serves now."""
        worker = self._worker
        return self._pulse if worker is not None and worker is self._of else None

    @property
    def _worker(self) -> Worker | None:
        serving = self._residency.serving
        return None if serving is None else serving.worker

    def refresh(self) -> None:
        """Ask the worker for its pulse in the background, unless it was asked and has not answered."""
        worker = self._worker
        if worker is not None and worker is not self._asked:
            self._asked = worker
            self._runtime.tasks.start_soon(self._ask, worker, name=f"ping {self._residency.model.model_id}")

    def released(self) -> None:
        """Nobody uses the lane any more: now is the time for what had to wait."""
        if self._runtime.recycle_rss_mib == 0 or (pulse := self.pulse) is None:
            return
        self._replace_if_due(pulse)
        if self._runtime.clock() - pulse.at > STALE_S:
            self.refresh()

    async def _ask(self, worker: Worker) -> None:
        try:
            pong = await worker.ping(f"ping-{next(self._numbers)}")
        except EngineCrashed:
            self._residency.notice_death(worker)
            return
        except WorkerRefusal as refusal:
            if worker is not self._refused:
                self._refused = worker
                _log.warning("worker %s refused PING: %s", worker.spec.worker_id, refusal.message)
            return
        finally:
            if self._asked is worker:
                self._asked = None
        fresh = self._fresh_size(worker, pong.rss_mb)
        self._of = worker
        self._pulse = Pulse(self._runtime.clock(), pong.rss_mb, fresh, pong.models_loaded, pong.placement_share)
        self._replace_if_due(self._pulse)

    def _fresh_size(self, worker: Worker, now_mib: int) -> int:
        serving = self._residency.serving
        if serving is not None and serving.worker is worker and serving.fresh_rss_mib is not None:
            return serving.fresh_rss_mib
        return self._pulse.fresh_rss_mib if self._pulse is not None and self._of is worker else now_mib

    def _replace_if_due(self, pulse: Pulse) -> None:
        limit, name = self._runtime.recycle_rss_mib, self._residency.model.model_id
        if 0 < limit < pulse.fresh_rss_mib and not self._warned:
            self._warned = True
            _log.warning(
                "a new worker of model %r holds %d MiB, more than worker.recycle_rss_mib of %d; it is not recycled, "
                "raise the setting",
                name,
                pulse.fresh_rss_mib,
                limit,
            )
        worker = self._worker
        if not grown_too_large(pulse, limit) or self._held() or worker is None:
            return
        # One that has just died is nobody's to replace: its end is a strike.
        if not (worker.idle and worker.alive):
            return
        if self._residency.start_recycling():
            _log.info(
                "model %r: worker %d holds %d MiB after %.0f s and %d requests, %d when new, limit %d; recycling",
                name,
                worker.pid,
                pulse.rss_mib,
                worker.age_s,
                worker.answered,
                pulse.fresh_rss_mib,
                limit,
            )
