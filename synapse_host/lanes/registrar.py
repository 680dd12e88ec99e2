"""Turns a load request into a registered model with its identity, and the registered model into a lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import anyio
import anyio.to_thread

from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.models.load_request import LoadRequest
from synapse_host.models.model_package import resolve_files, with_index
from synapse_host.models.model_preparation import prepare_model
from synapse_host.models.registered_model import RegisteredModel


class Enter(Protocol):
    """Hears the states of a load as they begin, with what is known by then."""

    def __call__(self, state: str, **facts: str) -> None: ...


#: The request, its files where they can be read.
Bring = Callable[[LoadRequest], Awaitable[LoadRequest]]


class ModelRegistrar:
    """Registers models: prepares, loads and stores each, and gives it its lane."""

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

    async def register(self, request: LoadRequest, enter: Enter, bring: Bring | None = None) -> Lane:
        """Check everything about the request, load the model, store it and return its lane.

        ``enter`` is told the states resolving, validating and loading. ``bring`` fetches what is not here, once it is
        known that the engine may serve it. A model that is already registered as exactly
        this keeps its lane; in any other case the old lane is unloaded first. A model that cannot be loaded or stored
        leaves what was registered as it was.

        Raises:
            InvalidRequest: the engine, task, dtype, architecture or tokenizer does not fit.
            BackendUnavailable: the engine cannot run on this machine.
            ArtifactInvalid: a file is missing or is not what it should be.
            ModelInUse: requests or a probe hold the id's present lane.
            EngineCrashed: the worker could not load it.
            StoreFailure: the model cannot be stored.

        """
        enter("resolving")
        description = await self._backends.for_loading(request.engine, request.task)
        if bring is not None:
            request = await bring(request)
        request = await anyio.to_thread.run_sync(partial(with_index, request, description.model_formats))
        files = await anyio.to_thread.run_sync(partial(resolve_files, request, description.model_formats))
        enter("validating")
        model = await anyio.to_thread.run_sync(
            partial(prepare_model, request, files, description, created_ms=self._now_ms())
        )
        async with self._turns[model.model_id]:
            enter("loading", model_id=model.model_id, fingerprint=model.fingerprint)
            return await self._loaded(model)

    def open_lane(self, model: RegisteredModel) -> Lane:
        """Give a stored ``model`` its lane, not yet loaded."""
        lane = Lane(model, self._runtime(model))
        self._lanes.put(lane)
        return lane

    async def _loaded(self, model: RegisteredModel) -> Lane:
        present = self._lanes.find(model.model_id)
        if present is None:
            return await self._begin(model, None)
        if replace(model, created_ms=present.model.created_ms) == present.model:
            if present.strikes.quarantined:
                await present.unload()
            await present.load()
            return present
        async with present.replaced():
            lane = await self._begin(model, present)
        await present.close()
        return lane

    async def _begin(self, model: RegisteredModel, former: Lane | None) -> Lane:
        """A lane for ``model``, in the table from now on, loaded and stored; ``former`` gets its place back if not."""
        lane = self.open_lane(model)
        try:
            await lane.load()
            await self._save(model)
        except BaseException:
            self._lanes.discard(model.model_id)
            if former is not None:
                self._lanes.put(former)
            with anyio.CancelScope(shield=True):
                await lane.close()
            raise
        return lane
