"""Carries out what ``shape_residency`` decides, on the one worker of the Neural Engine.

A compilation goes on whoever waits for it, holds no permit, and keeps the device from beginning anything else. What a
worker held is given back when it says so, or when its process is known to be gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed, InvalidRequest, SynapseError
from synapse_host.lanes.batching import padded_length
from synapse_host.lanes.compile_history import REMEMBERED, CompileHistory
from synapse_host.lanes.shape_residency import Action, Compile, Evict, Fail, Grant, Limits, Shape, ShapeResidency
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.worker import Worker
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import AdmitShape, Admitted, EvictShape

_log = logging.getLogger(__name__)
_GONE = "the worker of the Neural Engine ended; retry shortly"


def _refuses_nothing() -> None:
    return None


@value_object
class ShapedModel:
    """A loaded model whose shapes are compiled one by one: its id, and the lengths a row may be padded to.

    ``refuse`` raises during a pause.
    """

    model_id: str
    ladder: tuple[int, ...]
    refuse: Callable[[], None] = _refuses_nothing


@value_object
class Compilation:
    """One that has ended; ``error`` is the stable code it failed with."""

    model_id: str
    shape: int
    took_ms: int
    error: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Its row of ``lanes.status``."""
        failed = {} if self.error is None else {"error": self.error}
        return {"lane_id": self.model_id, "shape": self.shape, "took_ms": self.took_ms, **failed}


class ShapeLease:
    """One request's hold on one shape: waited for, used, released. Releasing it early, late or twice is harmless.

    A pause lets what was ``admitted`` end, and holds back what is computed for nobody's request, such as a probe.
    """

    def __init__(self, release: Callable[[ShapeLease], None], *, admitted: bool = True) -> None:
        self._over = asyncio.Event()
        self._error: SynapseError | None = None
        self._release = release
        self.admitted = admitted
        self.granted = False

    async def wait(self) -> None:
        """Wait until the shape is there; raises what its compilation failed with."""
        if not self.granted:
            await self._over.wait()
        if self._error is not None:
            raise self._error

    def release(self) -> None:
        """Use the shape no more, or wait for it no more."""
        self._release(self)

    def grant(self) -> None:
        """The shape is there."""
        self.granted = True
        self._over.set()

    def fail(self, error: SynapseError) -> None:
        """It never will be."""
        self._error = error
        self._over.set()


class ShapeKeeper:
    """The shapes of the worker that was attached last; ``clock`` counts seconds."""

    def __init__(
        self, turns: DeviceTurns, tasks: TaskGroup, clock: Callable[[], float], limits: Limits | None = None
    ) -> None:
        self.residency = ShapeResidency(limits or Limits())
        self.history = CompileHistory()
        #: The last compilations, newest last; every inventory a worker gave, by model and shape; and how many it gave.
        self.compilations: deque[Compilation] = deque(maxlen=REMEMBERED)
        self.inventories: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.admissions = 0
        self._turns = turns
        self._tasks = tasks
        self._clock = clock
        self._worker: Worker | None = None
        self._models: dict[str, ShapedModel] = {}
        self._tickets = count(1)
        self._numbers = count(1)
        self._leases: dict[int, ShapeLease] = {}
        self._changed = asyncio.Event()

    def attach(self, worker: Worker) -> None:
        """Let ``worker`` hold the shapes from here on; the one before it is known to be gone."""
        self._worker = worker
        self._tasks.start_soon(self._watch, worker, name="watch shapes")

    def register(self, model_ref: str, model: ShapedModel, layers: int) -> None:
        """The worker loaded ``model``; each of its shapes takes ``layers`` executables."""
        self._models[model_ref] = model
        self.residency.register(model_ref, layers=layers, smallest=model.ladder[0])

    def model(self, model_ref: str) -> ShapedModel | None:
        """A loaded model whose shapes are compiled one by one; None where it is no such."""
        return self._models.get(model_ref)

    def lease(self, model_ref: str, tokens: int, *, admitted: bool = True) -> ShapeLease:
        """Ask for the smallest shape that holds ``tokens``; where it is there, it is granted before this returns.

        For what is not ``admitted`` none is compiled in a pause: the wait fails as the pause refuses.
        """
        shape = Shape(model_ref, padded_length(tokens, self._models[model_ref].ladder))
        ticket = next(self._tickets)
        lease = self._leases[ticket] = ShapeLease(partial(self._release, ticket), admitted=admitted)
        self._follow(self.residency.want(ticket, shape))
        return lease

    def blocking(self, model_ref: str, tokens: int, since: float) -> int | None:
        """The shape whose compilation a wait for ``tokens`` since ``since`` met; None when it met none."""
        shape = padded_length(tokens, self._models[model_ref].ladder) if model_ref in self._models else tokens
        if self.residency.compiling == Shape(model_ref, shape):
            return shape
        return self.history.blocking(shape, since)

    def compiled_since(self, since: float) -> int | None:
        """The shape whose compilation held the worker at some point since ``since``; None where none did."""
        return self.history.blocking(0, since)

    async def emptied(self) -> None:
        """Wait until no worker holds anything: the last one's process is known to be gone."""
        while self._worker is not None:
            await self._changed.wait()

    async def left(self, model_ref: str) -> None:
        """Begin nothing of a model any more, and wait until nothing of it is being compiled or dropped."""
        if model_ref in self._models:
            gone = EngineCrashed("the model is unloaded while a shape of it is waited for; retry shortly")
            self._follow(self.residency.leaving(model_ref, gone.message), gone)
        while any(shape is not None and shape.model == model_ref for shape in self._under_way()):
            await self._changed.wait()

    def unloaded(self, model_ref: str) -> None:
        """The worker confirmed that the model is gone."""
        if self._models.pop(model_ref, None) is not None:
            self._follow(self.residency.unloaded(model_ref))

    def to_wire(self) -> dict[str, Any]:
        """What ``lanes.status`` says of the shapes."""
        residency = self.residency
        return {
            "executables": residency.spent,
            "max_executables": residency.limits.executables,
            "max_shapes": residency.limits.shapes,
            "max_shapes_of_model": residency.limits.shapes_of_model,
            "shapes": [self._row(shape) for shape in sorted(residency.resident, key=self._place)]
            + ([] if residency.compiling is None else [self._row(residency.compiling)]),
            "admissions": self.admissions,
            "compilations": [each.to_wire() for each in self.compilations],
            "inventories": [
                {"lane_id": name, "shape": shape, **inventory} for (name, shape), inventory in self.inventories.items()
            ],
        }

    def resident(self, model_ref: str) -> tuple[int, ...]:
        """The lengths of a model that are compiled, ascending."""
        return tuple(sorted(shape.length for shape in self.residency.resident if shape.model == model_ref))

    # --- carrying out ------------------------------------------------------------------------------------------

    def _release(self, ticket: int, lease: ShapeLease) -> None:
        if self._leases.pop(ticket, None) is None:
            return
        self._follow(self.residency.release(ticket) if lease.granted else self.residency.cancel(ticket))

    def _follow(self, actions: Sequence[Action], error: SynapseError | None = None) -> None:
        """Do what follows from an event; a wait that fails gets ``error``, or is told that it can never be met."""
        self._changed.set()
        self._changed = asyncio.Event()
        # Who has its shape asks for its turn before a compilation keeps turns from beginning.
        for action in sorted(actions, key=lambda action: isinstance(action, Compile | Evict)):
            if isinstance(action, Grant):
                self._leases[action.ticket].grant()
            elif isinstance(action, Fail):
                self._leases.pop(action.ticket).fail(error or InvalidRequest(action.reason))
            elif isinstance(action, Compile):
                self._tasks.start_soon(self._compile, action.shape, name=f"compile shape {action.shape.length}")
            else:
                self._tasks.start_soon(self._evict, action.shape, name=f"drop shape {action.shape.length}")

    async def _compile(self, shape: Shape) -> None:
        name, began = self._models[shape.model].model_id, self._clock()
        error: SynapseError | None = None
        try:
            async with self._turns.closed():
                began = self._clock()
                self._refuse_paused(shape)
                inventory = await self._admitted(shape, began)
        except WorkerRefusal as refusal:
            error = to_synapse_error(refusal)
        except EngineCrashed as crash:
            # What it takes is given back when the process is known to be gone.
            self._note(name, shape, began, crash)
            return
        except SynapseError as paused:
            _log.info("model %r: shape %d waits: %s", name, shape.length, paused.message)
            self._follow(self.residency.compile_failed(paused.message), paused)
            return
        self._note(name, shape, began, error)
        if error is not None:
            _log.warning("model %r: shape %d was not compiled: %s", name, shape.length, error.message)
            self._follow(self.residency.compile_failed(error.message), error)
            return
        self.admissions += 1
        self.inventories[name, shape.length] = inventory
        _log.info("model %r: shape %d compiled in %d ms", name, shape.length, self.compilations[-1].took_ms)
        self._follow(self.residency.compiled())

    def _refuse_paused(self, shape: Shape) -> None:
        """Raise where a pause holds this compilation back: no admitted request waits for it."""
        if not any(self._leases[ticket].admitted for ticket in self.residency.waiting(shape)):
            self._models[shape.model].refuse()

    async def _admitted(self, shape: Shape, now: float) -> Mapping[str, Any]:
        self.history.began(shape.length, now)
        try:
            message = AdmitShape(f"admit-{next(self._numbers)}", shape.model, shape.length)
            reply, _ = await self._require_worker().request(message)
        except WorkerRefusal:
            await self._require_absent(shape)
            raise
        finally:
            self.history.ended(self._clock())
        assert isinstance(reply, Admitted)
        return reply.inventory

    async def _require_absent(self, shape: Shape) -> None:
        """See a shape gone whose admission was refused: what it takes is given back for nothing less.

        Raises:
            EngineCrashed: nobody knows whether it is, so that the worker was ended.

        """
        worker, name = self._require_worker(), self._models[shape.model].model_id
        try:
            await worker.request(EvictShape(f"evict-{next(self._numbers)}", shape.model, shape.length))
        except WorkerRefusal as refusal:
            if refusal.code == "shape_not_admitted":
                return
            _log.error("model %r: shape %d may be left, restarting: %s", name, shape.length, refusal.message)
            await worker.stop()
            raise EngineCrashed(_GONE) from refusal

    async def _evict(self, shape: Shape) -> None:
        worker, name = self._require_worker(), self._models[shape.model].model_id
        try:
            async with self._turns.closed():
                await worker.request(EvictShape(f"evict-{next(self._numbers)}", shape.model, shape.length))
        except WorkerRefusal as refusal:
            # Nobody knows what the worker holds now; only its end tells.
            _log.error("model %r: shape %d was not dropped, restarting: %s", name, shape.length, refusal.message)
            await worker.stop()
        except EngineCrashed:
            return
        else:
            _log.info("model %r: shape %d dropped", name, shape.length)
            self._follow(self.residency.evicted())

    async def _watch(self, worker: Worker) -> None:
        await worker.closed.wait()
        error = EngineCrashed(_GONE)
        self._follow(self.residency.worker_lost(_GONE), error)
        await worker.exited.wait()
        self._models.clear()
        self._leases.clear()
        self._worker = None
        self._follow(self.residency.exited(_GONE), error)

    def _note(self, model_id: str, shape: Shape, began: float, error: SynapseError | None) -> None:
        took_ms = round((self._clock() - began) * 1000)
        self.compilations.append(Compilation(model_id, shape.length, took_ms, None if error is None else error.code))

    def _require_worker(self) -> Worker:
        assert self._worker is not None, "a shape is wanted before a worker is there"
        return self._worker

    def _under_way(self) -> tuple[Shape | None, Shape | None]:
        return self.residency.compiling, self.residency.evicting

    def _place(self, shape: Shape) -> tuple[str, int]:
        return self._models[shape.model].model_id, shape.length

    def _row(self, shape: Shape) -> dict[str, Any]:
        compiling = shape == self.residency.compiling
        state = "compiling" if compiling else "evicting" if shape == self.residency.evicting else "resident"
        return {
            "lane_id": self._models[shape.model].model_id,
            "shape": shape.length,
            "state": state,
            "executables": self.residency.cost(shape.model),
            "leases": 0 if compiling else self.residency.leases(shape),
        }
