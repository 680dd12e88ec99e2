"""Carries out a pause: lets admitted work end, unloads the lanes, gives the lock back, and takes it again.

What may happen when is decided in ``pause_state``. One task lives as long as a pause does; everything it waits for can
be given up at once, because unloading goes on in the lane's own task whoever waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from synapse_host.errors import EXCEPTIONS, SynapseError
from synapse_host.lanes.hardware_lock import HardwareLock
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.neural_engine_models import on_neural_engine
from synapse_host.lanes.pause_state import DrainFault, Pause, PauseState
from synapse_host.models.registered_model import RegisteredModel

_log = logging.getLogger(__name__)
#: Seconds between two tries to give the lock back or to take it (wire contract, lanes.status).
RETRY_S = 1.0


class PauseControl:
    """The lanes of the Neural Engine: running, or in a pause; ``now_ms`` is the time of day."""

    def __init__(
        self,
        lanes: LaneTable,
        lock: HardwareLock,
        tasks: TaskGroup,
        *,
        now_ms: Callable[[], int],
        clock: Callable[[], float],
        retry_s: float = RETRY_S,
    ) -> None:
        self._lanes = lanes
        self._lock = lock
        self._tasks = tasks
        self._now_ms = now_ms
        self._clock = clock
        self._retry_s = retry_s
        self._waiting: anyio.CancelScope | None = None
        self.state = PauseState()

    @property
    def lanes(self) -> list[Lane]:
        """The lanes a pause concerns, loaded or not, by id."""
        return [lane for lane in self._lanes if on_neural_engine(lane.model)]

    def status(self) -> dict[str, object]:
        """What ``lanes.status`` says."""
        return self.state.to_wire([lane.model.model_id for lane in self.lanes])

    def concerns(self, model: RegisteredModel) -> bool:
        """Whether ``model`` is paused now."""
        return self.state.active and on_neural_engine(model)

    def refuse(self, model: RegisteredModel) -> None:
        """Raise ``lane_paused`` while ``model`` is paused: before it is admitted, loaded, checked or compiled."""
        if self.concerns(model):
            raise self.state.refusal(model, self._clock())

    def require_lock(self, model: RegisteredModel) -> None:
        """Let a worker of ``model`` be started: no pause, and the hardware's lock is ours.

        Raises:
            SynapseError: ``lane_paused``, or ``ane_resources_exhausted`` while another process has the lock, or
                nobody can have it.

        """
        self.refuse(model)
        if not on_neural_engine(model):
            return
        needs = f"model {model.model_id!r} needs the Neural Engine"
        try:
            taken = self._lock.acquire()
        except OSError as error:
            raise EXCEPTIONS["ane_resources_exhausted"](
                f"{needs}, and its lock cannot be taken: {error}; make that place writable for this user"
            ) from error
        if not taken:
            raise EXCEPTIONS["ane_resources_exhausted"](
                f"{needs}, and another process of this user holds its lock; end that process, or retry when it is done"
            )

    def begin(self, duration_ms: int, reason: str) -> bool:
        """Pause from now on for so long; False, and nothing changed, during another pause."""
        pause = Pause(reason, self._now_ms() + duration_ms, self._clock() + duration_ms / 1000)
        if not self.state.begin(pause):
            return False
        _log.info("neural engine: paused for %d ms (%s), %d lanes drain", duration_ms, reason, len(self.lanes))
        self._tasks.start_soon(self._carry_out, duration_ms / 1000, name="pause of the neural engine")
        return True

    def resume(self) -> None:
        """End a pause early; harmless where there is none. What was admitted and what unloads already go on."""
        if not self.state.ends_later:
            return
        self._end()
        if self._waiting is not None:
            self._waiting.cancel()

    async def _carry_out(self, seconds: float) -> None:
        # A resume may come before this task has begun.
        if self.state.ends_later:
            with anyio.move_on_after(seconds) as self._waiting:
                await self._drain()
                await self._give_lock_back()
                await anyio.sleep_forever()
            self._waiting = None
            if self.state.ends_later:
                self._end()
        while self.state.active:
            await anyio.sleep(self._retry_s)
            self._take_lock()

    async def _drain(self) -> None:
        async with anyio.create_task_group() as draining:
            for lane in self.lanes:
                draining.start_soon(self._empty, lane)

    async def _empty(self, lane: Lane) -> None:
        try:
            await lane.emptied()
        except SynapseError as error:
            _log.warning("neural engine: lane %r could not be unloaded: %s", lane.model.model_id, error.message)
            self.state.lane_failed(DrainFault(lane.model.model_id, "unload", error.code, error.message))

    async def _give_lock_back(self) -> None:
        while self.state.may_give_lock_back:
            try:
                self._lock.release()
            except OSError as error:
                fault = f"the lock of the Neural Engine could not be given back: {error}; it is tried again"
                _log.warning("neural engine: %s", fault)
                self.state.lock_stuck(DrainFault(None, "release_lock", "store_failure", fault))
                await anyio.sleep(self._retry_s)
                continue
            self.state.lock_given_back()
            _log.info("neural engine: free")
            return

    def _end(self) -> None:
        if self.state.fault is not None:
            fault = self.state.fault
            _log.warning("neural engine: the pause ends undrained: %s, %s", fault.lane_id or "the lock", fault.message)
        elif not self.state.hardware_free:
            busy = ", ".join(lane.model.model_id for lane in self.lanes if lane.state is not LaneState.UNLOADED)
            _log.warning(
                "neural engine: the pause ends undrained, the hardware was never free; not unloaded: %s", busy or "none"
            )
        self.state.end()
        if self.state.active:
            self._take_lock()
        else:
            _log.info("neural engine: running again")

    def _take_lock(self) -> None:
        # Nothing here needs the hardware; whatever comes to need it takes the lock before its worker is started.
        if not self.lanes:
            self.state.lock_taken()
            _log.info("neural engine: running again, and no model here needs it")
            return
        try:
            taken = self._lock.acquire()
        except OSError as error:
            _log.warning("neural engine: its lock cannot be taken: %s", error)
            self.state.lock_refused(f"its lock can be taken: {error}")
            return
        if not taken:
            self.state.lock_refused(f"another process gives the hardware's lock back, {self._lock.path}")
            _log.warning(
                "neural engine: another process still holds its lock, %s; lanes stay paused until it gives it back",
                self._lock.path,
            )
            return
        self.state.lock_taken()
        _log.info("neural engine: running again")
