"""Which compiled sequence shapes a Neural Engine worker holds, and whose turn it is to have one compiled. Pure.

A shape is leased before it is used. Compilations are few, long and one at a time; requests for one shape share one.
What a shape costs, its layers' executables, is taken before it is compiled and given back only when its eviction, its
failure or the end of the process is confirmed. Nothing here talks to a worker: every event returns what is to be done.

Sources: the limits and the order of the direct Neural Engine lanes (original facts 1.7).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from synapse_host.values import value_object

Ticket: TypeAlias = int


@value_object
class Limits:
    """The most a worker holds: executables of layers (the hardware takes some 115), shapes, and shapes of one model."""

    executables: int = 100
    shapes: int = 8
    shapes_of_model: int = 4


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """One padded length of one model."""

    model: str
    length: int


@value_object
class Compile:
    """Ask the worker to admit a shape."""

    shape: Shape


@value_object
class Evict:
    """Ask the worker to drop a shape."""

    shape: Shape


@value_object
class Grant:
    """The wait is over: the shape is there and leased until it is released."""

    ticket: Ticket


@value_object
class Fail:
    """The wait is over: the shape could not be compiled, or can never fit."""

    ticket: Ticket
    reason: str


Action: TypeAlias = Compile | Evict | Grant | Fail


@dataclass(slots=True)
class _Held:
    leases: int
    used: int


@value_object
class _Wait:
    ticket: Ticket
    shape: Shape


@value_object
class _Model:
    cost: int
    smallest: int


@dataclass(slots=True)
class ShapeResidency:
    """The shapes of one worker. Methods are events; each returns the actions that follow from it, in order."""

    limits: Limits = field(default_factory=Limits)
    compiling: Shape | None = None
    evicting: Shape | None = None
    #: The worker is dead to whoever asks, and its process not known to be gone: nothing is granted, nothing refunded.
    lost: bool = False
    _models: dict[str, _Model] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _held: dict[Shape, _Held] = field(default_factory=dict)
    _leases: dict[Ticket, Shape] = field(default_factory=dict)
    _queue: list[_Wait] = field(default_factory=list)
    _clock: int = 0

    @property
    def spent(self) -> int:
        """Executables taken: by shapes that are there, being compiled or not yet confirmed to be gone."""
        return sum(self._cost(shape) for shape in self._occupied())

    @property
    def resident(self) -> frozenset[Shape]:
        """Shapes that can be leased, or are."""
        return frozenset(self._held)

    @property
    def idle(self) -> bool:
        """Whether nothing is being compiled or dropped."""
        return self.compiling is None and self.evicting is None

    def leases(self, shape: Shape) -> int:
        """How many requests use a resident shape now."""
        return self._held[shape].leases

    def waiting(self, shape: Shape) -> list[Ticket]:
        """Who waits for ``shape``, first come first."""
        return [wait.ticket for wait in self._queue if wait.shape == shape]

    def cost(self, model: str) -> int:
        """Executables one shape of ``model`` takes."""
        return self._models[model].cost

    def register(self, model: str, *, layers: int, smallest: int) -> None:
        """A model whose every shape costs ``layers`` executables; its ``smallest`` rung is evicted last."""
        self._models[model] = _Model(layers, smallest)

    def want(self, ticket: Ticket, shape: Shape) -> list[Action]:
        """A request needs ``shape``."""
        if self.lost or shape.model in self._leaving:
            return [Fail(ticket, "the worker of the Neural Engine ended, or the model leaves it")]
        if self._cost(shape) > self.limits.executables:
            most = self.limits.executables
            return [Fail(ticket, f"one shape of {shape.model} takes {self._cost(shape)} executables of at most {most}")]
        if shape in self._held and shape != self.evicting and not self._head_wants_a_victim():
            return [self._grant(ticket, shape)]
        self._queue.append(_Wait(ticket, shape))
        return self._next()

    def cancel(self, ticket: Ticket) -> list[Action]:
        """A wait was given up; a compilation it asked for goes on, since another may ask for the shape next."""
        self._queue = [wait for wait in self._queue if wait.ticket != ticket]
        return self._next()

    def release(self, ticket: Ticket) -> list[Action]:
        """A granted request is done with its shape; one that ended with its worker is none any more."""
        shape = self._leases.pop(ticket, None)
        if shape is not None:
            self._held[shape].leases -= 1
            self._held[shape].used = self._tick()
        return self._next()

    def compiled(self) -> list[Action]:
        """The worker admitted the shape it was compiling."""
        assert self.compiling is not None
        shape, self.compiling = self.compiling, None
        self._held[shape] = _Held(0, self._tick())
        granted: list[Action] = [self._grant(wait.ticket, shape) for wait in self._queue if wait.shape == shape]
        self._queue = [wait for wait in self._queue if wait.shape != shape]
        return granted + self._next()

    def compile_failed(self, reason: str) -> list[Action]:
        """The worker refused the shape it was compiling: it says so, so the shape takes nothing."""
        assert self.compiling is not None
        shape, self.compiling = self.compiling, None
        failed: list[Action] = [Fail(wait.ticket, reason) for wait in self._queue if wait.shape == shape]
        self._queue = [wait for wait in self._queue if wait.shape != shape]
        return failed + self._next()

    def evicted(self) -> list[Action]:
        """The worker confirmed that the shape is gone."""
        assert self.evicting is not None
        del self._held[self.evicting]
        self.evicting = None
        return self._next()

    def leaving(self, model: str, reason: str) -> list[Action]:
        """``model`` is to be unloaded: nothing of it is begun any more, and waits for its shapes fail.

        Its shapes are nobody's victims either: they go with it, and what it takes is given back then.
        """
        self._leaving.add(model)
        failed: list[Action] = [Fail(wait.ticket, reason) for wait in self._queue if wait.shape.model == model]
        self._queue = [wait for wait in self._queue if wait.shape.model != model]
        return failed + self._next()

    def unloaded(self, model: str) -> list[Action]:
        """The worker confirmed that ``model``, which was leaving, is gone, and its shapes with it.

        Only called while nothing of the model is being compiled or dropped: the worker does one thing at a time.
        """
        assert self.compiling is None or self.compiling.model != model
        assert self.evicting is None or self.evicting.model != model
        self._held = {shape: held for shape, held in self._held.items() if shape.model != model}
        self._leases = {ticket: shape for ticket, shape in self._leases.items() if shape.model != model}
        del self._models[model]
        self._leaving.discard(model)
        return self._next()

    def worker_lost(self, reason: str) -> list[Action]:
        """The worker answers no more: every wait fails. What it held is taken until its process is known to be gone."""
        self.lost = True
        waits, self._queue = self._queue, []
        return [Fail(wait.ticket, reason) for wait in waits]

    def exited(self, reason: str) -> list[Action]:
        """The worker's process is confirmed gone, and everything it held with it; every wait fails."""
        waits, self._queue = self._queue, []
        self.compiling = self.evicting = None
        self.lost = False
        self._held.clear()
        self._leaving.clear()
        self._leases.clear()
        return [Fail(wait.ticket, reason) for wait in waits]

    # --- whose turn it is --------------------------------------------------------------------------------------

    def _next(self) -> list[Action]:
        """Serve the queue from its head, strictly in order, as far as it goes."""
        if self.lost:
            return []
        actions: list[Action] = []
        while self._queue and not (self.compiling or self.evicting):
            head = self._queue[0]
            if head.shape in self._held:
                self._queue.pop(0)
                actions.append(self._grant(head.ticket, head.shape))
            elif self._fits(head.shape):
                self.compiling = head.shape
                actions.append(Compile(head.shape))
            else:
                victim = self._victim(head.shape)
                if victim is None:
                    break
                self.evicting = victim
                actions.append(Evict(victim))
        return actions + self._passing()

    def _passing(self) -> list[Action]:
        """Grant the waits whose shape is there, past a head that waits for a compilation and for no room."""
        if self._head_wants_a_victim():
            return []
        ready = [wait for wait in self._queue if wait.shape in self._held and wait.shape != self.evicting]
        self._queue = [wait for wait in self._queue if wait not in ready]
        return [self._grant(wait.ticket, wait.shape) for wait in ready]

    def _head_wants_a_victim(self) -> bool:
        """Whether the first wait needs room: whoever takes a lease now might take it from the shape that could go."""
        if not self._queue:
            return False
        head = self._queue[0].shape
        return head not in self._held and head != self.compiling and not self._fits(head)

    def _fits(self, shape: Shape) -> bool:
        occupied = list(self._occupied())
        return (
            self.spent + self._cost(shape) <= self.limits.executables
            and len(occupied) < self.limits.shapes
            and sum(each.model == shape.model for each in occupied) < self.limits.shapes_of_model
        )

    def _victim(self, wanted: Shape) -> Shape | None:
        """The shape to drop: unleased, least recently used, a model's smallest rung only where nothing else is left."""
        own = sum(each.model == wanted.model for each in self._occupied()) >= self.limits.shapes_of_model
        free = [
            shape
            for shape, held in self._held.items()
            if not held.leases and shape.model not in self._leaving and (not own or shape.model == wanted.model)
        ]
        loose = [shape for shape in free if shape.length != self._models[shape.model].smallest]
        return min(loose or free, key=lambda shape: self._held[shape].used, default=None)

    def _occupied(self) -> Iterator[Shape]:
        yield from self._held
        if self.compiling is not None:
            yield self.compiling

    def _grant(self, ticket: Ticket, shape: Shape) -> Grant:
        held = self._held[shape]
        held.leases += 1
        held.used = self._tick()
        self._leases[ticket] = shape
        return Grant(ticket)

    def _cost(self, shape: Shape) -> int:
        return self.cost(shape.model)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
