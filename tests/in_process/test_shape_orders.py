"""Requests, probes, crashes, refusals, deadlines, pauses and the lock in every order, on lanes that share a worker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from synapse_host.certification.lane_rows import lane_vectors
from synapse_host.errors import SynapseError
from synapse_host.testing.shape_calls import Call
from synapse_host.testing.shape_worker import ShapeBench, shape_bench
from synapse_host.worker_protocol.messages import AdmitShape

#: Two of these models fill the room; one could never have a shape there.
MODELS = {"small": 3, "gte": 22, "qwen": 28, "wide": 60, "deep": 101}
LENGTHS = (10, 200, 400, 900, 5000)


@dataclass
class Play:
    """What goes on, and what must never be seen."""

    bench: ShapeBench
    calls: list[Call] = field(default_factory=list)
    others: list[asyncio.Future[Any]] = field(default_factory=list)
    compiling: object = None
    requests_waited: bool = False

    def call(self, model: str, length: int) -> None:
        self.calls.append(Call(self.bench, model, length, 10))

    def probe(self, model: str, length: int) -> None:
        async def run() -> None:
            lane = self.bench.lanes[model]
            with lane.lease({"kind": "job", "job_id": "probe-1"}):
                await lane.load()
                await lane_vectors(lane, [[1] * length, [2] * 10])

        self.others.append(asyncio.ensure_future(run()))

    def late(self, model: str, length: int) -> None:
        """The oldest request that waits is given up."""
        for call in self.calls:
            if not call.task.done():
                call.task.cancel()
                return

    def answer(self, model: str, length: int) -> None:
        if self.bench.workers and self.bench.worker.in_hand is not None:
            self.bench.worker.answer()

    def refuse(self, model: str, length: int) -> None:
        if self.bench.workers and self.bench.worker.in_hand is not None:
            self.bench.worker.refuse()

    def die(self, model: str, length: int) -> None:
        if self.bench.workers and self.bench.worker.alive:
            self.bench.worker.keeps_process = length > 400
            self.bench.worker.die()

    def reap(self, model: str, length: int) -> None:
        for worker in self.bench.workers:
            if not worker.alive:
                worker.exited.set()

    def pause(self, model: str, length: int) -> None:
        self.bench.control.begin(0 if length == 10 else 60_000, "measuring")

    def resume(self, model: str, length: int) -> None:
        self.bench.control.resume()

    def lock(self, model: str, length: int) -> None:
        """Another process takes the lock where it is free, or gives it back."""
        lock = self.bench.lock
        lock.taken_by_others = not lock.taken_by_others and not lock.held

    def unload(self, model: str, length: int) -> None:
        self.others.append(asyncio.ensure_future(self.bench.lanes[model].unload()))

    def pass_on(self, model: str, length: int) -> None:
        self.bench.now += 10

    async def step(self, event: str, model: str, length: int) -> None:
        EVENTS[event](self, model, length)
        await self.bench.settle()
        self.look()

    def look(self) -> None:
        bench, residency = self.bench, self.bench.engine.shapes.residency
        living = [worker for worker in bench.workers if not worker.exited.is_set()]
        assert len(living) <= 1, "two processes on one piece of hardware"
        assert residency.spent <= 100
        assert all(worker.spent <= residency.spent for worker in living)
        assert all(residency.leases(shape) >= 0 for shape in residency.resident)
        assert bench.lock.held or not living, "the lock was given back over a worker"
        if bench.control.state.hardware_free:
            assert not living
            assert not bench.lock.held
        self.look_at_compilation()

    def look_at_compilation(self) -> None:
        """In a pause none begins but for a request that was there before it."""
        in_hand = self.bench.worker.in_hand if self.bench.workers else None
        if isinstance(in_hand, AdmitShape) and in_hand is not self.compiling and self.bench.control.state.active:
            assert self.requests_waited, "a compilation nobody's request waits for began in a pause"
        self.compiling = in_hand
        self.requests_waited = any(not call.task.done() for call in self.calls)

    async def end(self) -> None:
        """Everything that goes on comes to its end, and nothing is left of it."""
        bench = self.bench
        bench.lock.taken_by_others = False
        for _ in range(400):
            bench.control.resume()
            self.reap("", 0)
            self.answer("", 0)
            await bench.settle()
            self.look()
            if not bench.control.state.active and all(task.done() for task in self.tasks):
                break
        for task in self.tasks:
            assert task.done(), f"{task} hangs"
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, SynapseError), repr(error)
        residency = bench.engine.shapes.residency
        assert residency.idle
        assert sum(residency.leases(shape) for shape in residency.resident) == 0
        assert (bench.turns.running, bench.turns.waiting) == (0, 0)
        for lane in bench.lanes.values():
            await lane.unload()
        await bench.settle()
        assert residency.spent == 0

    @property
    def tasks(self) -> list[Any]:
        return [*(call.task for call in self.calls), *self.others]


EVENTS: Mapping[str, Callable[[Play, str, int], None]] = {
    each.__name__: each
    for each in (
        *(Play.call, Play.probe, Play.late, Play.answer, Play.refuse, Play.die, Play.reap),
        *(Play.pause, Play.resume, Play.lock, Play.unload, Play.pass_on),
    )
}
#: What happens more often than the rest, so that something is going on when that comes.
OFTEN = ["call", "call", "probe", "answer", "answer", "answer", *EVENTS]
STEPS = 200


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_budget_holds_the_lock_stays_with_the_worker_and_nothing_is_left(seed: int) -> None:
    chance = random.Random(seed)

    async def played() -> None:
        async with shape_bench(layers=dict(MODELS)) as bench:
            play = Play(bench)
            for _ in range(STEPS):
                await play.step(chance.choice(OFTEN), chance.choice(sorted(MODELS)), chance.choice(LENGTHS))
            await play.end()

    anyio.run(played)
