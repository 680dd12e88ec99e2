"""One lane: a registered model on one backend, its worker process and its life cycle.

The lane loads when first asked, serves rows in groups, survives its worker's death and unloads on request. What it
computes is said by ``model.fingerprint``; nothing here may change that.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import anyio
from anyio.abc import TaskGroup

from synapse_host.admission.gate import Budget
from synapse_host.errors import (
    DeadlineExceeded,
    EngineCrashed,
    ModelInUse,
    ModelLoading,
    ProbeRequired,
    SynapseError,
)
from synapse_host.lanes.batching import group_rows
from synapse_host.lanes.executor import LaneExecutor
from synapse_host.lanes.lane_state import LaneEvent, LaneState, next_state
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.lanes.strikes import Strikes
from synapse_host.lanes.worker_errors import embed_error, is_strike, load_error
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Load, Loaded, Unload, VectorsHeader

#: Longest wait of a request that finds its lane loading (wire contract section 2, model_loading).
LOAD_WAIT_MS = 5000
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class LaneRuntime:
    """What the host lends a lane: how to start its worker, its device's permits and the task group it lives in."""

    start_worker: Callable[[RegisteredModel], Awaitable[Worker]]
    read_tokenizer: Callable[[RegisteredModel], Awaitable[ModelTokenizer]]
    permits: anyio.Semaphore
    tasks: TaskGroup
    clock: Callable[[], float]
    threads: int = 0


@dataclass(slots=True)
class _Loading:
    finished: anyio.Event = field(default_factory=anyio.Event)
    error: SynapseError | None = None


@dataclass(frozen=True, slots=True)
class _Serving:
    """What exists only while the lane is ready."""

    worker: Worker
    model_ref: str
    dims: int
    buckets: tuple[int, ...] | None
    tokenizer: ModelTokenizer


class Lane:
    """A lane and everything that holds it."""

    def __init__(self, model: RegisteredModel, runtime: LaneRuntime) -> None:
        self.model = model
        self.state = LaneState.UNLOADED
        self.strikes = Strikes()
        self.cold_load_ms: int | None = None
        self.rows_computed = 0
        self.executor = LaneExecutor(runtime.permits)
        self._runtime = runtime
        self._serving: _Serving | None = None
        self._loading: _Loading | None = None
        self._leases: set[str] = set()
        self._numbers = count(1)
        self._scope = anyio.CancelScope()
        runtime.tasks.start_soon(self._serve, name=f"lane {model.model_id}")

    @property
    def dims(self) -> int | None:
        """Vector width, once a worker has said it."""
        return self._serving.dims if self._serving else None

    @property
    def buckets(self) -> tuple[int, ...] | None:
        """Padded lengths of the loaded engine, where it has a ladder."""
        return self._serving.buckets if self._serving else None

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The tokenizer of a ready lane."""
        return self._require_serving().tokenizer

    # --- loading -----------------------------------------------------------------------------------------------

    async def ensure_ready(self, budget: Budget) -> None:
        """Load if needed and wait for it, at most until the deadline or five seconds.

        Raises:
            ModelLoading: five seconds passed and the deadline has not.
            DeadlineExceeded: the deadline came first.
            ProbeRequired: the lane is quarantined.
            SynapseError: what the load failed with.

        """
        if self.state is LaneState.READY:
            return
        self._refuse_quarantined()
        remaining = budget.remaining_ms(self._runtime.clock())
        loading = self.start_loading()
        with anyio.move_on_after(min(remaining, LOAD_WAIT_MS) / 1000):
            await loading.finished.wait()
        if not loading.finished.is_set():
            raise self._still_loading(budget, remaining)
        if loading.error is not None:
            raise loading.error

    def start_loading(self) -> _Loading:
        """The load in progress, begun now if there is none; it goes on whoever waits."""
        if self._loading is None:
            self._loading = _Loading()
            self._runtime.tasks.start_soon(self._load, self._loading, name=f"load {self.model.model_id}")
        return self._loading

    async def load(self) -> None:
        """Load and wait to the end; raises what the load failed with."""
        if self.state is LaneState.READY:
            return
        loading = self.start_loading()
        await loading.finished.wait()
        if loading.error is not None:
            raise loading.error

    async def _load(self, loading: _Loading) -> None:
        self._move(LaneEvent.LOAD)
        worker: Worker | None = None
        try:
            tokenizer = await self._runtime.read_tokenizer(self.model)
            began = time.perf_counter()
            worker = await self._runtime.start_worker(self.model)
            loaded = await self._request_load(worker)
            self.cold_load_ms = round((time.perf_counter() - began) * 1000)
            buckets = tuple(loaded.buckets) if loaded.buckets else None
            self._serving = _Serving(worker, loaded.model_ref, loaded.dims, buckets, tokenizer)
            self._move(LaneEvent.LOADED)
            self._runtime.tasks.start_soon(self._watch, worker, name=f"watch {self.model.model_id}")
        except SynapseError as error:
            loading.error = error
            self._count_strike(error)
            self._move(LaneEvent.LOAD_FAILED)
            if worker is not None:
                await worker.stop()
        finally:
            self._loading = None
            loading.finished.set()

    async def _request_load(self, worker: Worker) -> Loaded:
        model = self.model
        message = Load(
            req_id=f"load-{next(self._numbers)}",
            artifact_path=model.model_path,
            artifact_digest=model.model_sha256,
            format=model.format,
            runtime_config=model.runtime_config(threads=self._runtime.threads),
        )
        try:
            reply, _ = await worker.request(message, operation="load")
        except WorkerRefusal as refusal:
            raise load_error(refusal, model) from refusal
        assert isinstance(reply, Loaded)
        return reply

    async def _watch(self, worker: Worker) -> None:
        await worker.closed.wait()
        if self._serving is not None and self._serving.worker is worker:
            self._serving = None
            self._move(LaneEvent.WORKER_DIED)

    def _still_loading(self, budget: Budget, remaining: float) -> SynapseError:
        name = self.model.model_id
        if remaining <= LOAD_WAIT_MS:
            return DeadlineExceeded(
                f"model {name!r} was still loading when deadline_ms of {budget.deadline_ms} passed; raise deadline_ms"
            )
        return ModelLoading(f"model {name!r} is still loading after {LOAD_WAIT_MS} ms; retry shortly")

    def _refuse_quarantined(self) -> None:
        if self.strikes.quarantined:
            raise ProbeRequired(
                f"model {self.model.model_id!r} is quarantined after {self.strikes.count} failures in a row; "
                "unload and load it again",
                details={"lane_id": self.model.model_id, "quarantined": True},
            )

    # --- serving -----------------------------------------------------------------------------------------------

    @contextmanager
    def lease(self) -> Iterator[str]:
        """Hold the lane loaded for the length of the block; the name is shown to whoever wants to unload it."""
        name = f"lease-{next(self._numbers)}"
        self._leases.add(name)
        try:
            yield name
        finally:
            self._leases.discard(name)

    async def embed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str]) -> tuple[int, bytes]:
        """Vectors of token ``rows`` as little-endian float32 in the order given, and their width.

        Raises:
            EngineCrashed: the worker died, broke its protocol, or computed something that is no vector.

        """
        serving = self._require_serving()
        groups = group_rows([len(row) for row in rows], self.model.batch, serving.buckets)
        width = serving.dims * FLOAT_BYTES
        if len(groups) == 1 and len(rows) == 1:
            return serving.dims, await self._execute(serving, groups[0], rows, item_ids)
        out = bytearray(len(rows) * width)
        for group in groups:
            raw = await self._execute(serving, group, rows, item_ids)
            for position, index in enumerate(group):
                out[index * width : (index + 1) * width] = raw[position * width : (position + 1) * width]
        return serving.dims, bytes(out)

    async def _execute(
        self, serving: _Serving, group: list[int], rows: Sequence[Sequence[int]], item_ids: Sequence[str]
    ) -> bytes:
        return await self.executor.execute(
            partial(self._exchange, serving, [rows[index] for index in group], [item_ids[index] for index in group])
        )

    async def _exchange(self, serving: _Serving, rows: list[Sequence[int]], item_ids: list[str]) -> bytes:
        # The worker is told positions, not the caller's ids: a long id cannot make a frame too large.
        ids = array("i")
        for row in rows:
            ids.extend(row)
        message = EmbedBatchRequest(
            req_id=f"embed-{next(self._numbers)}",
            model_ref=serving.model_ref,
            pooling=self.model.pooling,
            normalize=self.model.normalize,
            items=[{"id": str(position), "n_tokens": len(row)} for position, row in enumerate(rows)],
        )
        try:
            reply, raw = await serving.worker.request(message, ids.tobytes(), operation="embed")
        except WorkerRefusal as refusal:
            raise embed_error(refusal, item_ids) from refusal
        except EngineCrashed as crash:
            self._count_strike(crash)
            raise
        assert isinstance(reply, VectorsHeader)
        assert raw is not None
        self.strikes.served()
        self.rows_computed += reply.n
        return raw

    async def _serve(self) -> None:
        with self._scope:
            await self.executor.serve()

    def _require_serving(self) -> _Serving:
        if self._serving is None:
            raise EngineCrashed(f"the worker of model {self.model.model_id!r} ended before the request could run")
        return self._serving

    # --- leaving -----------------------------------------------------------------------------------------------

    async def unload(self) -> None:
        """Stop the worker; the model stays registered.

        Raises:
            ModelInUse: requests hold the lane; details name them.
            ModelLoading: a load is in progress.

        """
        name = self.model.model_id
        if self._leases:
            holders = [{"kind": "request", "lease_id": lease} for lease in sorted(self._leases)]
            raise ModelInUse(
                f"model {name!r} is serving {len(holders)} request(s); wait for them, then unload",
                details={"model_id": name, "holders": holders},
            )
        if self._loading is not None or self.state is LaneState.UNLOADING:
            raise ModelLoading(f"model {name!r} is {self.state}; retry when that is done")
        self._move(LaneEvent.UNLOAD)
        serving, self._serving = self._serving, None
        if serving is not None:
            await self._stop(serving)
        self.strikes.clear()
        self._move(LaneEvent.UNLOADED)

    async def _stop(self, serving: _Serving) -> None:
        message = Unload(req_id=f"unload-{next(self._numbers)}", model_ref=serving.model_ref)
        # The process is stopped next, which frees the model whatever the worker answered.
        with suppress(EngineCrashed, WorkerRefusal):
            await serving.worker.request(message, operation="unload")
        await serving.worker.stop()

    async def close(self) -> None:
        """End the lane for good: stop its loop and its worker."""
        self._scope.cancel()
        serving, self._serving = self._serving, None
        if serving is not None:
            await serving.worker.stop()

    def _count_strike(self, error: SynapseError) -> None:
        if is_strike(error):
            self.strikes.fault()

    def _move(self, event: LaneEvent) -> None:
        self.state = next_state(self.state, event)
