"""One model's share of a worker that serves several: to its lane it is a worker of its own.

Stopping a share ends the process only with the last one, or where it is not known that the model is gone from it. The
end of the process is the fault of the share whose request it had in hand, and nobody else's strike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio

from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.framing import Buffer
from synapse_host.lanes.batching import padded_length
from synapse_host.lanes.shape_keeper import ShapedModel, ShapeKeeper, ShapeLease
from synapse_host.supervision.exchange import Exchange, Reply
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import DRAIN_S, Worker
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Hello,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    RerankSequences,
    Unload,
)


class WorkerShare:
    """What a lane sees of ``worker``; ``let_go`` is told once that this share is no longer wanted.

    ``layers`` is what each shape of the model takes; None for a model whose shapes are not compiled one by one.
    ``refuse`` raises while the model is paused.
    """

    def __init__(
        self,
        worker: Worker,
        keeper: ShapeKeeper,
        let_go: Callable[[WorkerShare, float], Awaitable[None]],
        model_id: str,
        layers: int | None,
        refuse: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._keeper = keeper
        self._let_go = let_go
        self._model_id = model_id
        self._layers = layers
        self._refuse = refuse
        self._released = False
        self._model_refs: set[str] = set()
        self._load: Message | None = None
        self.closed = worker.closed
        self._given_up = anyio.Event()

    # --- what it shows of the worker ---------------------------------------------------------------------------

    @property
    def spec(self) -> WorkerSpec:
        """What the worker was started with."""
        return self._worker.spec

    @property
    def hello(self) -> Hello:
        """What the worker said of itself."""
        return self._worker.hello

    @property
    def alive(self) -> bool:
        """Whether a request may still be answered."""
        return self._worker.alive and not self._released

    @property
    def idle(self) -> bool:
        """Whether the worker has nothing to do, for whomever."""
        return self._worker.idle

    @property
    def age_s(self) -> float:
        """Seconds since the worker shook hands."""
        return self._worker.age_s

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._worker.pid

    @property
    def answered(self) -> int:
        """Requests the worker has answered, for whomever."""
        return self._worker.answered

    @property
    def max_frame(self) -> int:
        """The negotiated frame size in bytes."""
        return self._worker.max_frame

    @property
    def holds_model(self) -> bool:
        """Whether the worker may hold a model of this share: loaded, or loading with an unknown end."""
        return bool(self._model_refs) or self._load is not None

    @property
    def fault(self) -> WorkerFault | None:
        """Why the worker ended: its own doing only to the share whose request it had in hand, or where it had none."""
        fault = self._worker.fault
        if fault is None or self._is_ours(self._worker.ended_during):
            return fault
        return WorkerFault("other_model", f"the worker ended over another model's request: {fault.message}")

    async def model_gone(self) -> None:
        """Wait until the worker holds no model of this share any more; the process may go on for others."""
        async with anyio.create_task_group() as tasks:

            async def cut_short() -> None:
                await self.closed.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(cut_short)
            await self._given_up.wait()
            tasks.cancel_scope.cancel()

    def output_tail(self) -> str:
        """The last 8 KiB of the worker's output."""
        return self._worker.output_tail()

    # --- what it asks of the worker ----------------------------------------------------------------------------

    def exchange(
        self, message: Message, raw: Buffer | None = None, *, drained: Callable[[], None] | None = None
    ) -> Exchange:
        """As the worker's; whoever submits a group holds the lease of its shape."""
        return self._worker.exchange(message, raw, drained=drained)

    def submit(self, exchange: Exchange) -> None:
        """As the worker's."""
        self._worker.submit(exchange)

    def abandon(self, exchange: Exchange) -> None:
        """As the worker's."""
        self._worker.abandon(exchange)

    async def ping(self, req_id: str) -> Pong:
        """As the worker's; memory is the whole process's, the share on the device this model's own."""
        pong = await self._worker.ping(req_id)
        shares = [share for ref, share in (pong.placement_shares or {}).items() if ref in self._model_refs]
        return replace(pong, placement_share=min(shares, default=None))

    async def request(self, message: Message, raw: Buffer | None = None, **options: Any) -> Reply:
        """As the worker's; rows of a model with shapes are computed under the lease of theirs.

        What lanes serve goes by ``submit``: rows that come here are nobody's request, and a pause holds them back.
        """
        if isinstance(message, Load):
            return await self._loaded(message, options)
        if isinstance(message, Unload):
            return await self._unloaded(message, options)
        lease = self._lease_for(message)
        try:
            if lease is not None:
                await lease.wait()
            return await self._worker.request(message, raw, **options)
        finally:
            if lease is not None:
                lease.release()

    def leases(self, model_ref: str) -> ModelShapes | None:
        """The shapes of a loaded model, where they are compiled one by one."""
        return None if self._keeper.model(model_ref) is None else ModelShapes(self._keeper, model_ref)

    async def stop(self, *, drain_s: float = DRAIN_S, **_: Any) -> None:
        """Give the share up; the worker ends with the last one.

        Raises:
            EngineCrashed: the worker had to end and is not known to have.

        """
        if not self._released:
            self._released = True
            with anyio.move_on_after(drain_s):
                await self._unload_all()
            await self._let_go(self, drain_s)
            if not self.holds_model:
                self._given_up.set()

    async def _unload_all(self) -> None:
        """Take out of the worker what nobody took out: it goes on for the others."""
        for number, model_ref in enumerate(sorted(self._model_refs)):
            with suppress(EngineCrashed, WorkerRefusal):
                await self._unloaded(Unload(f"unload-share-{number}", model_ref), {})

    async def _loaded(self, message: Load, options: dict[str, Any]) -> Reply:
        self._load = message
        try:
            reply, raw = await self._worker.request(message, **options)
        except WorkerRefusal:
            self._load = None
            raise
        except SynapseError as error:
            raise self._own(error) from error
        self._load = None
        assert isinstance(reply, Loaded)
        self._model_refs.add(reply.model_ref)
        if self._layers is not None and reply.buckets:
            model = ShapedModel(self._model_id, tuple(sorted(reply.buckets)), self._refuse)
            self._keeper.register(reply.model_ref, model, self._layers)
        return reply, raw

    async def _unloaded(self, message: Unload, options: dict[str, Any]) -> Reply:
        await self._keeper.left(message.model_ref)
        answer = await self._worker.request(message, **options)
        self._model_refs.discard(message.model_ref)
        self._keeper.unloaded(message.model_ref)
        return answer

    def _lease_for(self, message: Message) -> ShapeLease | None:
        if isinstance(message, EmbedBatchRequest):
            counts = [int(item["n_tokens"]) for item in message.items]
        elif isinstance(message, RerankSequences):
            counts = [int(item["n_tokens"]) for item in message.sequences]
        else:
            return None
        model = self._keeper.model(message.model_ref)
        if model is None:
            return None
        shapes = {padded_length(tokens, model.ladder) for tokens in counts}
        assert len(shapes) == 1, f"one group has rows of the shapes {sorted(shapes)}"
        return self._keeper.lease(message.model_ref, max(counts), admitted=False)

    def _is_ours(self, message: Message | None) -> bool:
        # One that ended over nothing, or over a look at its health, failed all its models alike.
        if message is None or isinstance(message, Ping) or message is self._load:
            return True
        return not isinstance(message, Load) and getattr(message, "model_ref", None) in self._model_refs

    def _own(self, error: SynapseError) -> SynapseError:
        """``error``, without what would make it a strike where another model's request was at fault."""
        fault = self.fault
        if not isinstance(error, EngineCrashed) or fault is None or fault is self._worker.fault:
            return error
        return EngineCrashed(fault.message, details={**(error.details or {}), "reason": fault.reason})


class ModelShapes:
    """The shapes of one loaded model, to whoever computes with it."""

    def __init__(self, keeper: ShapeKeeper, model_ref: str) -> None:
        self._keeper = keeper
        self._model_ref = model_ref

    @property
    def resident(self) -> tuple[int, ...]:
        """The lengths that are compiled, ascending."""
        return self._keeper.resident(self._model_ref)

    def lease(self, tokens: int, *, admitted: bool = True) -> ShapeLease:
        """Ask for the smallest shape that holds ``tokens``; what is not ``admitted`` a pause holds back."""
        return self._keeper.lease(self._model_ref, tokens, admitted=admitted)

    def blocking(self, tokens: int, since: float) -> int | None:
        """The shape whose compilation a wait for ``tokens`` since ``since`` met; None when it met none."""
        return self._keeper.blocking(self._model_ref, tokens, since)


def shapes_of(worker: object, model_ref: str) -> ModelShapes | None:
    """The shapes of a model that ``worker`` has loaded, where it is a share and they are compiled one by one."""
    return worker.leases(model_ref) if isinstance(worker, WorkerShare) else None


async def ended(worker: Worker, drain_s: float) -> None:
    """Stop ``worker`` and see its process gone; raises ``EngineCrashed`` where that is not known."""
    await worker.stop(drain_s=drain_s)
    if not worker.exited.is_set():
        raise EngineCrashed(
            f"worker {worker.spec.worker_id!r} (process {worker.pid}) was killed and is not known to have ended; what "
            "it holds of the Neural Engine is not free until then"
        )
