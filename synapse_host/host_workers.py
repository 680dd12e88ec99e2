"""The part of the composition root that starts workers. Nothing is decided here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import Devices
from synapse_host.errors import EngineCrashed
from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.hardware_lock import FileLock
from synapse_host.lanes.neural_engine_models import on_neural_engine
from synapse_host.lanes.pausing import PauseControl
from synapse_host.lanes.worker_errors import other_package
from synapse_host.models.registered_model import DIRECT_ENGINE, RegisteredModel
from synapse_host.settings import Settings
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.output_log import OutputLog
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec

if TYPE_CHECKING:
    from synapse_host.lanes.neural_engine import NeuralEngine
    from synapse_host.lanes.worker_share import ModelShapes


class HostWorkers:
    """Starts the workers of one host: one for a lane, and one for all lanes of each engine of the Neural Engine."""

    def __init__(
        self,
        settings: Settings,
        backends: BackendChoice,
        pauses: PauseControl,
        lock: FileLock,
        devices: Devices,
        output: OutputLog,
        tasks: TaskGroup,
    ) -> None:
        self._settings = settings
        self._backends = backends
        self._pauses = pauses
        self._lock = lock
        self._devices = devices
        self._output = output
        self._tasks = tasks
        #: By engine, made for the first model there; what its device is called decides whose turns it takes.
        self._neural_engines: dict[str, NeuralEngine] = {}
        #: Workers started in the life of this host.
        self.started = 0

    async def start(self, model: RegisteredModel) -> Worker:
        """A worker of ``model``'s own, or a share of the Neural Engine's.

        Raises:
            EngineCrashed: it could not be started.
            SynapseError: the model is paused, its hardware another process's, its backend not installed.

        """
        self._pauses.require_lock(model)
        await self._backends.require_installed(model.backend)
        if on_neural_engine(model):
            # A share is to its lane all that a worker is.
            return cast(Worker, await self._engine_of(model).share(model))
        return await self._spawn(model, None)

    def shapes_of(self, worker: Worker, model_ref: str) -> ModelShapes | None:
        """The shapes of a model that ``worker`` has loaded, where they are compiled one by one."""
        if type(worker) is Worker:
            return None
        from synapse_host.lanes.worker_share import shapes_of

        return shapes_of(worker, model_ref)

    def compiling(self, model: RegisteredModel, since: float) -> int | None:
        """The shape whose compilation held the worker ``model`` is loaded by since a second; None where none did."""
        engine = self._neural_engines.get(model.engine.engine)
        return None if engine is None else engine.shapes.compiled_since(since)

    def residency(self) -> dict[str, Any] | None:
        """What the worker holds whose shapes are compiled one by one; None before there was one."""
        direct = self._neural_engines.get(DIRECT_ENGINE)
        return None if direct is None else direct.to_wire()

    def _engine_of(self, model: RegisteredModel) -> NeuralEngine:
        engine = model.engine.engine
        if engine not in self._neural_engines:
            from synapse_host.lanes.neural_engine import NeuralEngine

            turns = self._devices.of(model.device_class)
            refuse = self._pauses.refuse
            self._neural_engines[engine] = NeuralEngine(
                self._spawn_with_lock, turns, self._tasks, time.monotonic, refuse=refuse
            )
        return self._neural_engines[engine]

    async def _spawn_with_lock(self, model: RegisteredModel) -> Worker:
        """A worker that inherits the hardware's lock, which is not given back from here on until it is gone."""
        # A pause may have begun and given it back since the start was asked for.
        self._pauses.require_lock(model)
        started: list[Worker] = []
        failed = False
        self._lock.inherited(lambda: failed or any(worker.exited.is_set() for worker in started))
        try:
            started.append(await self._spawn(model, self._lock.descriptor))
        except BaseException:
            failed = True
            raise
        return started[0]

    async def _spawn(self, model: RegisteredModel, stdin: int | None) -> Worker:
        self.started += 1
        worker_id = f"synapse-{model.engine.engine}-{model.model_id}-{self.started}"
        settings = self._settings
        spec = WorkerSpec(
            backend=model.backend,
            engine=model.engine.engine,
            worker_id=worker_id,
            socket_path=worker_socket_path(settings.paths.runtime_dir, worker_id),
            max_frame=settings.server.max_frame,
            expected_manifest=model.manifest_digest,
            expected_kernel=model.kernel_revision,
            expected_flags=model.engine.reported_flags,
            output=self._output,
            settings=settings.of_backends.get(model.backend, {}),
            stdin=stdin,
        )
        try:
            return await Worker.start(spec, self._tasks)
        except EngineCrashed as crash:
            if other_package(crash):
                # Without its device or driver an engine names others, and no loading again mends that.
                await self._backends.require_runnable(model.backend)
            raise
