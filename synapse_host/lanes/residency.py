"""Whether a lane's model is in memory: loading, the worker's death, unloading, and what each costs or clears.

Every change runs in a task of its own that goes on whoever waits for it. A caller that gives up, or a connection that
goes away, can therefore never leave a lane half loaded or half unloaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed, ModelLoading, SynapseError
from synapse_host.lanes.host_fault import host_fault
from synapse_host.lanes.lane_state import LaneEvent, LaneState, next_state
from synapse_host.lanes.strikes import FREE_FORM, QuarantinePolicy, Strikes
from synapse_host.lanes.worker_errors import is_strike, is_strike_fault, load_error
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.tokenization.pairs import LaneTokenizer
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import Load, Loaded, Unload

if TYPE_CHECKING:
    from synapse_host.lanes.worker_share import ModelShapes

_log = logging.getLogger(__name__)
#: Seconds a worker gets to end by itself when its lane closes. Admitted requests were awaited before.
CLOSE_DRAIN_S = 2.0


@value_object
class LaneRuntime:
    """What the host lends a lane: how to start its worker, its device's turns and the task group it lives in."""

    start_worker: Callable[[RegisteredModel], Awaitable[Worker]]
    read_tokenizer: Callable[[RegisteredModel], Awaitable[LaneTokenizer]]
    turns: DeviceTurns
    tasks: TaskGroup
    clock: Callable[[], float]
    threads: int = 0
    #: What an exchange of a kind that was never seen is expected to take, in milliseconds.
    estimate_ms: float = 25.0
    #: A worker above this many MiB is replaced once its lane is idle; 0 is no limit.
    recycle_rss_mib: int = 0
    #: What two strikes mean for the lane.
    quarantine: QuarantinePolicy = FREE_FORM
    #: Raises where a model must not be loaded now.
    refuse_load: Callable[[RegisteredModel], None] = lambda model: None
    #: Called when a worker has loaded the lane's model.
    loaded: Callable[[], None] = lambda: None
    #: What a refused LOAD becomes for those who wait for it.
    load_error: Callable[[WorkerRefusal, RegisteredModel], Awaitable[SynapseError]] = load_error
    #: The shapes of a model that a worker has loaded, where they are compiled one by one.
    shapes_of: Callable[[Worker, str], ModelShapes | None] = lambda worker, model_ref: None
    #: The shape whose compilation held the worker a model is loaded by since a second of ``clock``; None for none.
    compiling: Callable[[RegisteredModel, float], int | None] = lambda model, since: None
    #: The folder a worker may keep compiled packages of a model in; None where it has none.
    packages: Callable[[Worker, RegisteredModel], Awaitable[str | None]] | None = None


@dataclass(slots=True)
class Errand:
    """One change in progress; any number may wait for ``finished`` and then look at ``error``."""

    finished: anyio.Event = field(default_factory=anyio.Event)
    error: SynapseError | None = None

    async def outcome(self) -> None:
        """Wait to the end; raises what the change failed with."""
        await self.finished.wait()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise what the finished change failed with, if it failed."""
        if self.error is not None:
            raise self.error


@value_object
class Serving:
    """What exists only while the lane is ready."""

    worker: Worker
    model_ref: str
    dims: int
    buckets: tuple[int, ...] | None
    tokenizer: LaneTokenizer
    #: What the worker held when it had just loaded; asked only where its size is limited.
    fresh_rss_mib: int | None = None
    shapes: ModelShapes | None = None


class Residency:
    """The model of one lane, in memory or not."""

    def __init__(self, model: RegisteredModel, runtime: LaneRuntime) -> None:
        self.model = model
        self.state = LaneState.UNLOADED
        self.strikes = Strikes(runtime.quarantine, runtime.clock)
        self.cold_load_ms: int | None = None
        self.serving: Serving | None = None
        #: Workers replaced for their size, and whether one is being replaced now.
        self.recycled = 0
        self.recycling = False
        self._runtime = runtime
        self._loading: Errand | None = None
        self._unloading: Errand | None = None
        self._retired = False
        self._numbers = count(1)

    @property
    def loading(self) -> bool:
        """Whether a load is in progress."""
        return self._loading is not None

    def start_loading(self) -> Errand:
        """The load in progress, begun now if there is none; a lane that is unloading loads when that is done.

        Raises:
            ModelLoading: the lane is being replaced by another of the same id.
            SynapseError: nothing may be loaded now, such as during a pause.

        """
        if self._retired:
            raise ModelLoading(f"model {self.model.model_id!r} is being replaced by another load; retry shortly")
        if self._loading is None:
            self._runtime.refuse_load(self.model)
            self._loading = Errand()
            self._runtime.tasks.start_soon(self._load, self._loading, name=f"load {self.model.model_id}")
        return self._loading

    def start_unloading(self) -> Errand:
        """The unload in progress, begun now if there is none.

        Raises:
            ModelLoading: a load is in progress.

        """
        if self._loading is not None:
            raise ModelLoading(f"model {self.model.model_id!r} is {self.state}; retry when that is done")
        if self._unloading is None:
            self._unloading = Errand()
            self._move(LaneEvent.UNLOAD)
            self._runtime.tasks.start_soon(self._unload, self._unloading, name=f"unload {self.model.model_id}")
        return self._unloading

    def start_recycling(self) -> bool:
        """Stop the worker and start another in its place; False where the lane is not at rest.

        To everyone else this is a load in progress. It is nobody's fault: no strike, and none is cleared.
        """
        if self.state is not LaneState.READY or self._loading is not None or self._retired:
            return False
        try:
            self._runtime.refuse_load(self.model)
        except SynapseError:
            return False
        self._loading, self.recycling = Errand(), True
        self._move(LaneEvent.UNLOAD)
        self._runtime.tasks.start_soon(self._recycle, self._loading, name=f"recycle {self.model.model_id}")
        return True

    async def recycling_over(self) -> None:
        """Wait for the end of a replacement, where there is one in progress."""
        while self.recycling and self._loading is not None:
            await self._loading.finished.wait()

    async def settled(self) -> None:
        """Wait until nothing loads, unloads or is replaced."""
        while (errand := self._loading or self._unloading) is not None:
            await errand.finished.wait()

    def retire(self, *, retired: bool = True) -> None:
        """Load no more, because another lane takes the id; or take that back."""
        self._retired = retired

    def notice_death(self, worker: Worker) -> None:
        """Take note that ``worker`` ended, once however many notice it; a fault of its own is one strike."""
        if self.serving is None or self.serving.worker is not worker or worker.fault is None:
            return
        self.serving = None
        self._move(LaneEvent.WORKER_DIED)
        if is_strike_fault(worker.fault.reason, worker.fault.handshake_code):
            self._strike()

    async def close(self) -> None:
        """Stop the worker and never start another; what it still computes is wanted by nobody."""
        self._retired = True
        serving, self.serving = self.serving, None
        if serving is not None:
            # A process that does not end cannot keep the host from ending; it is logged where it was killed.
            with suppress(EngineCrashed):
                await serving.worker.stop(drain_s=CLOSE_DRAIN_S)

    async def _load(self, loading: Errand) -> None:
        try:
            if self._unloading is not None:
                await self._unloading.finished.wait()
            self._move(LaneEvent.LOAD)
            await self._start_serving()
            self._move(LaneEvent.LOADED)
            self._log_loaded()
            self._runtime.loaded()
        except SynapseError as error:
            loading.error = error
            _log.warning("model %r could not be loaded: %s: %s", self.model.model_id, error.code, error.message)
            if is_strike(error):
                self._strike()
        except Exception as fault:
            loading.error = host_fault(f"loading model {self.model.model_id!r}", fault)
        finally:
            if self.state is LaneState.LOADING:
                self._move(LaneEvent.LOAD_FAILED)
            self._loading, self.recycling = None, False
            loading.finished.set()

    async def _recycle(self, loading: Errand) -> None:
        serving, self.serving = self.serving, None
        try:
            if serving is not None:
                await self._stop(serving)
        except Exception as fault:
            # The process is dead or out of reach; the lane goes on with another.
            host_fault(f"stopping the worker of model {self.model.model_id!r}", fault)
        self._move(LaneEvent.UNLOADED)
        self.recycled += 1
        await self._load(loading)

    async def _start_serving(self) -> None:
        tokenizer = await self._runtime.read_tokenizer(self.model)
        began = time.perf_counter()
        worker = await self._runtime.start_worker(self.model)
        try:
            loaded = await self._request_load(worker)
            fresh_rss_mib = await self._fresh_size(worker)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await worker.stop()
            raise
        self.cold_load_ms = round((time.perf_counter() - began) * 1000)
        buckets = tuple(loaded.buckets) if loaded.buckets else None
        shapes = self._runtime.shapes_of(worker, loaded.model_ref)
        self.serving = Serving(worker, loaded.model_ref, loaded.dims, buckets, tokenizer, fresh_rss_mib, shapes)
        self._runtime.tasks.start_soon(self._watch, worker, name=f"watch {self.model.model_id}")

    async def _fresh_size(self, worker: Worker) -> int | None:
        """Asked before anybody is served: later it could not be told from growth."""
        if not self._runtime.recycle_rss_mib:
            return None
        try:
            return (await worker.ping(f"ping-fresh-{next(self._numbers)}")).rss_mb
        except WorkerRefusal:
            return None

    async def _request_load(self, worker: Worker) -> Loaded:
        model = self.model
        packages = await self._runtime.packages(worker, model) if self._runtime.packages else None
        message = Load(
            req_id=f"load-{next(self._numbers)}",
            artifact_path=model.model_path,
            artifact_digest=model.model_sha256,
            format=model.format,
            runtime_config=model.runtime_config(threads=self._runtime.threads, packages=packages),
        )
        try:
            reply, _ = await worker.request(message, operation="load")
        except WorkerRefusal as refusal:
            raise await self._runtime.load_error(refusal, model) from refusal
        assert isinstance(reply, Loaded)
        return reply

    async def _watch(self, worker: Worker) -> None:
        await worker.closed.wait()
        self.notice_death(worker)

    async def _unload(self, unloading: Errand) -> None:
        try:
            serving, self.serving = self.serving, None
            if serving is not None:
                await self._stop(serving)
                worker = serving.worker
                _log.info(
                    "model %r unloaded: worker %d stopped after %.1f s and %d requests",
                    self.model.model_id,
                    worker.pid,
                    worker.age_s,
                    worker.answered,
                )
        except SynapseError as error:
            unloading.error = error
        except Exception as fault:
            unloading.error = host_fault(f"unloading model {self.model.model_id!r}", fault)
        finally:
            self.strikes.release()
            self._move(LaneEvent.UNLOADED)
            self._unloading = None
            unloading.finished.set()

    async def _stop(self, serving: Serving) -> None:
        message = Unload(req_id=f"unload-{next(self._numbers)}", model_ref=serving.model_ref)
        # The process is stopped next, which frees the model whatever the worker answered.
        with suppress(EngineCrashed, WorkerRefusal):
            await serving.worker.request(message, operation="unload")
        await serving.worker.stop()

    def _log_loaded(self) -> None:
        serving, model = self.serving, self.model
        if serving is not None:
            _log.info(
                "model %r loaded in %d ms: worker %d, backend %s, %s, %d dims, fingerprint %s",
                model.model_id,
                self.cold_load_ms,
                serving.worker.pid,
                model.backend,
                model.dtype,
                serving.dims,
                model.fingerprint,
            )

    def _strike(self) -> None:
        self.strikes.fault()
        if self.strikes.quarantined:
            _log.warning("model %r is quarantined after %d failures in a row", self.model.model_id, self.strikes.count)

    def _move(self, event: LaneEvent) -> None:
        self.state = next_state(self.state, event)
