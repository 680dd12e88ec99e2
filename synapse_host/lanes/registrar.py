"""Turns a load request into a registered model with its identity, and the registered model into a lane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

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

    async def register(self, request: LoadRequest, enter: Callable[[str], None]) -> Lane:
        """Check everything about the request, store the model and return its lane, not yet loaded.

        ``enter`` is told the states resolving and validating as they begin. A model that is already registered with
        the same identity keeps its lane; with another identity its old lane is unloaded first.

        Raises:
            InvalidRequest: the engine, task, dtype, architecture or tokenizer does not fit.
            BackendUnavailable: the engine cannot run on this machine.
            ArtifactInvalid: a file is missing or is not what it should be.
            ModelInUse: the id is serving another identity right now.

        """
        enter("resolving")
        description = await self._backends.for_loading(request.engine, request.task)
        files = await anyio.to_thread.run_sync(partial(resolve_files, request))
        enter("validating")
        model = await anyio.to_thread.run_sync(
            partial(prepare_model, request, files, description, created_ms=self._now_ms())
        )
        lane = self._lanes.find(model.model_id)
        if lane is not None and lane.model.fingerprint == model.fingerprint and _same_files(lane.model, model):
            if lane.strikes.quarantined:
                await lane.unload()
            return lane
        await self._save(model)
        if lane is not None:
            await self._replace(lane)
        return self.open_lane(model)

    def open_lane(self, model: RegisteredModel) -> Lane:
        """Give ``model`` its lane, not yet loaded; used at registration and, from the store, at start."""
        lane = Lane(model, self._runtime(model))
        self._lanes.add(lane)
        return lane

    async def _replace(self, lane: Lane) -> None:
        await lane.unload()
        await lane.close()
        self._lanes.discard(lane.model.model_id)


def _same_files(one: RegisteredModel, other: RegisteredModel) -> bool:
    return (one.model_path, one.tokenizer_path, one.config_path) == (
        other.model_path,
        other.tokenizer_path,
        other.config_path,
    )
