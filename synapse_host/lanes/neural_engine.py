"""The one worker of the direct lanes of the Neural Engine, shared by their models, with the lock of the hardware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed
from synapse_host.lanes.neural_engine_models import admits_shapes, layers_of
from synapse_host.lanes.shape_keeper import ShapeKeeper
from synapse_host.lanes.shape_residency import Limits
from synapse_host.lanes.worker_share import WorkerShare, ended
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.worker import Worker

#: Seconds a load waits for the end of the worker before it, which was killed.
_END_WAIT_S = 5.0


async def _read_layers(model: RegisteredModel) -> int:
    return await anyio.to_thread.run_sync(layers_of, model)


class NeuralEngine:
    """Hands out shares of one worker, which is started with the first of them and ends with the last.

    ``start`` starts a worker for a model, which inherits the lock. ``refuse`` raises while a model is paused.
    """

    def __init__(
        self,
        start: Callable[[RegisteredModel], Awaitable[Worker]],
        turns: DeviceTurns,
        tasks: TaskGroup,
        clock: Callable[[], float],
        *,
        limits: Limits | None = None,
        layers: Callable[[RegisteredModel], Awaitable[int]] = _read_layers,
        refuse: Callable[[RegisteredModel], None] = lambda model: None,
    ) -> None:
        self.shapes = ShapeKeeper(turns, tasks, clock, limits)
        self._start = start
        self._layers = layers
        self._refuse = refuse
        self._worker: Worker | None = None
        self._shares: set[WorkerShare] = set()
        self._changing = anyio.Lock()

    async def share(self, model: RegisteredModel) -> WorkerShare:
        """A share of the worker for ``model``, which is then loaded through it.

        Raises:
            EngineCrashed: the worker could not be started, or the one before it is not known to have ended.
            ArtifactInvalid: the model's config.json does not say how many layers it has.

        """
        layers = await self._layers(model) if admits_shapes(model) else None
        async with self._changing:
            worker = await self._running(model)
            refuse = partial(self._refuse, model)
            share = WorkerShare(worker, self.shapes, self._let_go, model.model_id, layers, refuse)
            self._shares.add(share)
            return share

    def to_wire(self) -> dict[str, Any]:
        """What ``lanes.status`` says of it."""
        worker = self._worker if self._worker is not None and self._worker.alive else None
        return {"worker_pid": None if worker is None else worker.pid, **self.shapes.to_wire()}

    async def _running(self, model: RegisteredModel) -> Worker:
        worker = self._worker
        if worker is not None and worker.alive:
            return worker
        with anyio.move_on_after(_END_WAIT_S):
            await self.shapes.emptied()
        if worker is not None and not worker.exited.is_set():
            raise EngineCrashed(
                f"model {model.model_id!r} cannot be loaded: process {worker.pid}, the last worker of the Neural "
                "Engine, was killed and is not known to have ended; end it, then retry"
            )
        self._shares.clear()
        self._worker = worker = await self._start(model)
        self.shapes.attach(worker)
        return worker

    async def _let_go(self, share: WorkerShare, drain_s: float) -> None:
        async with self._changing:
            if share not in self._shares:
                return
            self._shares.discard(share)
            worker = self._worker
            if worker is not None and (share.holds_model or not self._shares):
                await ended(worker, drain_s)
