"""A worker of the Neural Engine without a process, and lanes that share it: it answers, dies and is reaped on request.

It does one thing at a time and holds the host to the rules: rows come for shapes that were admitted, what is dropped is
not in use, and what it holds never passes the budget.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.batching import padded_length
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.neural_engine import NeuralEngine
from synapse_host.lanes.pausing import PauseControl
from synapse_host.lanes.shape_residency import Limits
from synapse_host.lanes.worker_share import shapes_of
from synapse_host.models.registered_model import DIRECT_ENGINE, RegisteredModel
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_fault import FaultReason, WorkerFault, crash_error
from synapse_host.worker_protocol.messages import (
    AdmitShape,
    Admitted,
    EmbedBatchRequest,
    Evicted,
    EvictShape,
    Load,
    Loaded,
    Message,
    Pong,
    Unload,
    Unloaded,
    VectorsHeader,
)

LADDER = (128, 256, 512, 1024, 2048, 4096, 8192)
#: Layers of the models the bench has lanes for.
LAYERS = {"gte": 22, "qwen": 28}


class HeldShapeWorker:
    """What a share sees of a worker. LOAD and UNLOAD are answered at once, the rest when the test calls for it."""

    pid = 7
    age_s = 0.0
    answered = 0
    spec = SimpleNamespace(worker_id="held")

    def __init__(self) -> None:
        self.closed = anyio.Event()
        self.exited = anyio.Event()
        self.fault: WorkerFault | None = None
        self.ended_during: Message | None = None
        #: What it holds, by model reference; and how each reference was loaded.
        self.shapes: dict[str, set[int]] = {}
        self.layers: dict[str, int] = {}
        self.keeps_process = False
        #: Share of operations on the device by shape, where it is not all.
        self.share_at: dict[int, float] = {}
        self._queue: deque[Exchange] = deque()

    @property
    def alive(self) -> bool:
        return self.fault is None

    @property
    def idle(self) -> bool:
        return not self._queue

    @property
    def in_hand(self) -> Message | None:
        """What it is asked now."""
        return self._queue[0].message if self._queue else None

    @property
    def spent(self) -> int:
        """Executables it holds, one it is asked to compile included."""
        held = [self.layers[ref] for ref, shapes in self.shapes.items() for _ in shapes]
        return sum(held) + (self.layers[self.in_hand.model_ref] if isinstance(self.in_hand, AdmitShape) else 0)

    # --- what a share calls --------------------------------------------------------------------------------------

    async def request(self, message: Message, raw: bytes | None = None, **_: Any) -> Any:
        exchange = self.exchange(message, raw)
        self.submit(exchange)
        await exchange.done.wait()
        return exchange.outcome()

    def exchange(self, message: Message, raw: Any = None, *, drained: Callable[[], None] | None = None) -> Exchange:
        return Exchange(message, raw, drained, 1)

    def submit(self, exchange: Exchange) -> None:
        if self.fault is not None:
            exchange.fail(self._crash())
            return
        self._queue.append(exchange)
        self._answer_easy()

    def abandon(self, exchange: Exchange) -> None:
        if exchange in self._queue and self._queue[0] is not exchange:
            self._queue.remove(exchange)
            exchange.fail(self._crash())

    async def ping(self, req_id: str) -> Pong:
        shares = {
            ref: min(self.share_at.get(shape, 1.0) for shape in shapes) for ref, shapes in self.shapes.items() if shapes
        }
        return Pong(req_id, 1, len(self.shapes), min(shares.values(), default=None), placement_shares=shares or None)

    async def stop(self, **_: Any) -> None:
        if self.fault is None:
            self.die("stopped")

    # --- what a test calls ---------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Answer what is in hand with what it asks for."""
        exchange = self._queue[0]
        reply = self._reply(exchange)
        self._queue.popleft()
        exchange.finish(reply)
        self._answer_easy()

    def refuse(self, code: str = "inference_failed") -> None:
        """Answer what is in hand with ERR."""
        self._queue.popleft().fail(WorkerRefusal(code, "not today"))
        self._answer_easy()

    def die(self, reason: FaultReason = "exited") -> None:
        """End; whoever waits is told. The process goes with it unless it ``keeps_process``."""
        self.ended_during = self.in_hand
        self.fault = WorkerFault(reason, f"the worker ended: {reason}")
        waiting, self._queue = self._queue, deque()
        if not self.keeps_process:
            self.exited.set()
        for exchange in waiting:
            exchange.fail(self._crash())
        self.closed.set()

    def _answer_easy(self) -> None:
        asked = self.in_hand
        if isinstance(asked, Load | Unload):
            self.answer()
        elif isinstance(asked, EvictShape) and asked.shape not in self.shapes[asked.model_ref]:
            self.refuse("shape_not_admitted")

    def _reply(self, exchange: Exchange) -> tuple[Message, bytes | None]:
        message: Any = exchange.message
        if isinstance(message, Load):
            model_ref = f"model-{len(self.layers) + 1}"
            self.shapes[model_ref], self.layers[model_ref] = set(), int(message.runtime_config["max_tokens"])
            return Loaded(message.req_id, model_ref, 1, 1, list(LADDER)), None
        held = self.shapes[message.model_ref]
        if isinstance(message, Unload):
            del self.shapes[message.model_ref]
            return Unloaded(message.req_id), None
        if isinstance(message, AdmitShape):
            assert message.shape not in held, f"{message.shape} is there already"
            assert self.spent <= 100, f"{self.spent} executables"
            held.add(message.shape)
            executables = [{"id": str(shape), "layers": [0]} for shape in sorted(held)]
            return Admitted(message.req_id, {"executables": executables, "cpu_stages": []}), None
        if isinstance(message, EvictShape):
            held.remove(message.shape)
            return Evicted(message.req_id), None
        assert isinstance(message, EmbedBatchRequest), message
        counts = [int(item["n_tokens"]) for item in message.items]
        assert {padded_length(count, LADDER) for count in counts} <= held, f"{counts} computed with {held}"
        firsts = [
            struct.unpack_from("<i", cast("bytes", exchange.raw), 4 * sum(counts[:at]))[0] for at in range(len(counts))
        ]
        return VectorsHeader(message.req_id, 1, len(firsts)), struct.pack(f"<{len(firsts)}f", *firsts)

    def _crash(self) -> Exception:
        fault = self.fault or WorkerFault("stopped", "the caller went away")
        return crash_error(fault, worker_id="held", returncode=None, output_tail="")


LOCK_PATH = Path("neural-engine.lock")


@dataclass
class HeldLock:
    """The lock of the hardware, with what happens to it as the test says."""

    held: bool = False
    taken_by_others: bool = False
    descriptor: int | None = None
    path: Path = LOCK_PATH
    holders: list[Callable[[], bool]] = field(default_factory=list)

    def acquire(self) -> bool:
        self.held = not self.taken_by_others
        return self.held

    def inherited(self, gone: Callable[[], bool]) -> None:
        self.holders.append(gone)

    def release(self) -> None:
        if not all(gone() for gone in self.holders):
            raise OSError("a process that inherited it is not known to have ended")
        self.held = False


def shaped_model(model_id: str, layers: int) -> RegisteredModel:
    """A model of the direct engine; its layers go to the held worker as ``max_tokens``."""
    empty: dict[str, Any] = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    said: dict[str, Any] = {
        "model_id": model_id,
        "engine": EngineIdentity(DIRECT_ENGINE, "1", {}),
        "task": "embed",
        "pooling": "mean",
        "normalize": True,
        "max_tokens": layers,
        "vocab_size": 100,
        "catalog_id": None,
        "shards": (),
        "batch": BatchPolicy(4, 65_536),
        "numeric_profile_json": '{"prompt_template": null}',
    }
    return RegisteredModel(**{**empty, **said})


@dataclass
class ShapeBench:
    """Lanes of the direct engine on one held worker at a time; ``now`` is their clock in seconds."""

    tasks: TaskGroup
    engine: NeuralEngine
    control: PauseControl
    lock: HeldLock
    turns: DeviceTurns
    workers: list[HeldShapeWorker]
    lanes: dict[str, Lane] = field(default_factory=dict)
    now: float = 0.0

    @property
    def worker(self) -> HeldShapeWorker:
        """The worker started last."""
        return self.workers[-1]

    async def settle(self) -> None:
        """Let everything that can happen by itself happen."""
        for _ in range(25):
            await asyncio.sleep(0)


@asynccontextmanager
async def shape_bench(limits: Limits | None = None, layers: dict[str, int] | None = None) -> AsyncIterator[ShapeBench]:
    """Unloaded lanes of ``layers``; everything is stopped at the end."""
    workers: list[HeldShapeWorker] = []

    async def start(model: RegisteredModel) -> Worker:
        workers.append(HeldShapeWorker())
        lock.inherited(workers[-1].exited.is_set)
        return cast("Worker", workers[-1])

    async def no_tokenizer(model: RegisteredModel) -> Any:
        return None

    async def layers_of(model: RegisteredModel) -> int:
        return model.max_tokens

    async def start_for(model: RegisteredModel) -> Worker:
        bench.control.require_lock(model)
        return cast("Worker", await bench.engine.share(model))

    async with anyio.create_task_group() as tasks:
        lock, table, turns = HeldLock(), LaneTable(), DeviceTurns(clock=lambda: bench.now)
        control = PauseControl(table, lock, tasks, now_ms=lambda: 1_000_000, clock=lambda: bench.now, retry_s=0.0)
        engine = NeuralEngine(
            start,
            turns,
            tasks,
            lambda: bench.now,
            limits=limits,
            layers=layers_of,
            refuse=control.refuse,
        )
        bench = ShapeBench(tasks, engine, control, lock, turns, workers)
        runtime = LaneRuntime(
            start_for,
            no_tokenizer,
            turns,
            tasks,
            lambda: bench.now,
            refuse_load=control.refuse,
            shapes_of=shapes_of,
            compiling=lambda model, since: engine.shapes.compiled_since(since),
        )
        for name, number in (layers or LAYERS).items():
            bench.lanes[name] = Lane(shaped_model(name, number), runtime)
            table.put(bench.lanes[name])
        try:
            yield bench
        finally:
            tasks.cancel_scope.cancel()
