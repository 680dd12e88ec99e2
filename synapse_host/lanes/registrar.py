"""Turns a load request into a registered model with its identity, and the registered model into a lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import anyio
import anyio.to_thread

from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.load_request import LoadRequest
from synapse_host.lanes.model_preparation import prepare_model, resolve_files
from synapse_host.lanes.registered_model import RegisteredModel


class ModelRegistrar:
    """Registers models: prepares, stores and gives each its lane."""

    def __init__(
        self,
        lanes: LaneTable,
        backends: BackendChoice,
        *,
        save: Callable[[RegisteredModel], Awaitable[None]],
        runtime: Callable[[RegisteredModel], LaneRuntime],
        now_ms: Callable[[], int],
    ) -> None:
        self._lanes = lanes
        self._backends = backends
        self._save = save
        self._runtime = runtime
        self._now_ms = now_ms
        #: Two loads of one id take turns, or both would find the id free.
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def register(self, request: LoadRequest, enter: Callable[[str], None]) -> Lane:
        """Check everything about the request, store the model and return its lane, not yet loaded.

        ``enter`` is told the states resolving and validating as they begin. A model that is already registered as
        exactly this keeps its lane; in any other case the old lane is unloaded first.

        Raises:
            InvalidRequest: the engine, task, dtype, architecture or tokenizer does not fit.
            BackendUnavailable: the engine cannot run on this machine.
            ArtifactInvalid: a file is missing or is not what it should be.
            ModelInUse: requests or a probe hold the id's present lane.
            StoreFailure: the model cannot be stored; what was registered before still is.

        """
        enter("resolving")
        description = await self._backends.for_loading(request.engine, request.task)
        files = await anyio.to_thread.run_sync(partial(resolve_files, request))
        enter("validating")
        model = await anyio.to_thread.run_sync(
            partial(prepare_model, request, files, description, created_ms=self._now_ms())
        )
        async with self._turns[model.model_id]:
            return await self._lane_for(model)

    def open_lane(self, model: RegisteredModel) -> Lane:
        """Give ``model`` its lane, not yet loaded; used at registration and, from the store, at start."""
        lane = Lane(model, self._runtime(model))
        self._lanes.add(lane)
        return lane

    async def _lane_for(self, model: RegisteredModel) -> Lane:
        lane = self._lanes.find(model.model_id)
        if lane is None:
            await self._save(model)
            return self.open_lane(model)
        if replace(model, created_ms=lane.model.created_ms) == lane.model:
            if lane.strikes.quarantined:
                await lane.unload()
            return lane
        return await self._replace(lane, model)

    async def _replace(self, lane: Lane, model: RegisteredModel) -> Lane:
        """The lane of ``model`` in the place of ``lane``; the store changes only once nothing can refuse any more."""
        async with lane.replaced():
            await self._save(model)
        self._lanes.discard(lane.model.model_id)
        new = self.open_lane(model)
        await lane.close()
        return new
