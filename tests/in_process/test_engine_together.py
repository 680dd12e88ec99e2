"""The machines of the Neural Engine together, in every order of events; and the host's own code held against them.

One script of events drives both. After each they must show the same: what became of every request, the shapes, what
they take, the phase of the pause, the lock, and what the worker has in hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.pause_state import PausePhase
from synapse_host.lanes.shape_residency import Evict, Limits, ShapeResidency
from synapse_host.testing.engine_model import EngineModel
from synapse_host.testing.shape_calls import Call
from synapse_host.testing.shape_worker import LADDER, LAYERS, ShapeBench, shape_bench
from synapse_host.worker_protocol.messages import AdmitShape, EmbedBatchRequest, EvictShape

Step = tuple[int, int, int]
#: An event, by its place among those that may happen, and two numbers to choose what it happens to.
STEPS = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), min_size=15, max_size=60)
#: Room for two or three shapes, so that it is made all the time.
NARROW = Limits(executables=72)
#: Wants are drawn more often: without requests nothing happens.
EAGER = ("want", "want", "want", "answer", "answer")


def chosen(model: EngineModel, step: Step) -> tuple[str, int]:
    """The event a step means now, and the request or the lane it is about."""
    enabled = model.enabled()
    names = [*enabled, *(name for name in EAGER if name in enabled)]
    name = names[step[0] % len(names)]
    if name == "cancel":
        return name, model.open_calls()[step[1] % len(model.open_calls())]
    return name, step[1]


def wanted(model: EngineModel, step: Step) -> tuple[str, int] | None:
    """A lane that is not on its way out, and a length."""
    lanes = [lane for lane in sorted(LAYERS) if lane not in model.unloading]
    return (lanes[step[1] % len(lanes)], LADDER[step[2] % 4]) if lanes else None


def drive(model: EngineModel, name: str, number: int, want: tuple[str, int] | None) -> int | None:
    """Let an event happen to the model; the blocking shape where a deadline passed."""
    acts: dict[str, Callable[[], Any]] = {
        "want": lambda: want and model.want(*want),
        "cancel": lambda: model.cancel(number),
        "answer": model.answer,
        "fail": lambda: model.answer(works=False),
        "refuse_eviction": lambda: model.answer(works=False),
        "crash": model.crash,
        "pause": model.begin_pause,
        "resume": model.resume,
        "take_lock": model.others_take_lock,
        "give_lock": model.others_give_lock,
    }
    blocking = acts[name]()
    return blocking if name == "cancel" else None


def check_sound(model: EngineModel) -> None:
    """What holds whatever happens."""
    residency = model.residency
    shapes = [*residency.resident, *([residency.compiling] if residency.compiling else [])]
    assert residency.spent == sum(residency.cost(shape.model) for shape in shapes) <= residency.limits.executables
    assert len(shapes) <= residency.limits.shapes
    assert not residency.spent or model.worker, "executables are taken and no worker holds them"
    assert not model.pause.hardware_free or not (model.worker or model.lock_ours or model.busy)
    assert not model.worker or model.lock_ours, "a worker without the lock"
    assert model.pause.phase is not PausePhase.PAUSED or not model.open_calls()
    stuck = [call for call in model.calls if call.open and call.state != "running"]
    assert not stuck or model.busy, f"{stuck} wait for nothing"


@settings(max_examples=250)
@given(steps=STEPS)
def test_the_machines_together_keep_the_budget_and_forget_nobody(steps: list[Step]) -> None:
    model = EngineModel(ShapeResidency(NARROW))
    for step in steps:
        model.now += 1
        drive(model, *chosen(model, step), wanted(model, step))
        check_sound(model)
    finish(model)
    check_sound(model)


def finish(model: EngineModel) -> None:
    """Answer all there is to answer: nobody may be left."""
    for _ in range(1000):
        if not model.busy:
            break
        model.answer()
    assert not model.open_calls()
    model.others_give_lock()
    if model.pause.ends_later:
        model.resume()
    assert not model.pause.active
    leases = sum(model.residency.leases(shape) for shape in model.residency.resident)
    assert leases == 0, "a lease is left and nobody has it"


class Shell:
    """The host's own code under the same events."""

    def __init__(self, bench: ShapeBench) -> None:
        self.bench = bench
        self.calls: list[Call | None] = []

    def want(self, lane: str, length: int) -> None:
        refused = self.bench.control.concerns(self.bench.lanes[lane].model)
        self.calls.append(None if refused else Call(self.bench, lane, length))

    def cancel(self, number: int) -> int | None:
        call = self.calls[number]
        assert call is not None
        error = None if call.plan is None else call.lane.compiling(call.plan)
        call.task.cancel()
        return None if error is None else dict(error.details or {})["shape"]

    def drive(self, name: str, number: int, want: tuple[str, int] | None) -> int | None:
        bench = self.bench
        acts: dict[str, Callable[[], Any]] = {
            "want": lambda: want and self.want(*want),
            "cancel": lambda: self.cancel(number),
            "answer": lambda: bench.worker.answer(),
            "fail": lambda: bench.worker.refuse("ane_resources_exhausted"),
            "refuse_eviction": lambda: bench.worker.refuse(),
            "crash": lambda: bench.worker.die("stopped"),
            "pause": lambda: bench.control.begin(3_600_000, "measuring"),
            "resume": bench.control.resume,
            "take_lock": lambda: setattr(bench.lock, "taken_by_others", True),
            "give_lock": lambda: setattr(bench.lock, "taken_by_others", False),
        }
        blocking = acts[name]()
        return blocking if name == "cancel" else None

    def shown(self) -> dict[str, Any]:
        residency, worker = self.bench.engine.shapes.residency, self.bench.workers[-1] if self.bench.workers else None
        alive = worker is not None and worker.alive
        hand = worker.in_hand if alive and worker is not None else None
        return {
            "calls": [self._outcome(call) for call in self.calls],
            "resident": residency.resident,
            "compiling": residency.compiling,
            "evicting": residency.evicting,
            "leases": {shape: residency.leases(shape) for shape in residency.resident},
            "spent": residency.spent,
            "phase": self.bench.control.state.phase,
            "lock": self.bench.lock.held,
            "worker": alive,
            "loaded": {name for name, lane in self.bench.lanes.items() if lane.state is LaneState.READY},
            "hand": None if hand is None else hand.TYPE,
        }

    def _outcome(self, call: Call | None) -> str:
        if call is None:
            return "lane_paused"
        if not call.task.done():
            return "open"
        if call.task.cancelled():
            return "cancelled"
        return "done" if call.task.exception() is None else call.code()


def shown(model: EngineModel) -> dict[str, Any]:
    hand = None
    if model.running is not None:
        hand = EmbedBatchRequest.TYPE
    elif model.held:
        hand = EvictShape.TYPE if isinstance(model.closing, Evict) else AdmitShape.TYPE
    return {
        "calls": ["open" if call.open else call.state for call in model.calls],
        "resident": model.residency.resident,
        "compiling": model.residency.compiling,
        "evicting": model.residency.evicting,
        "leases": {shape: model.residency.leases(shape) for shape in model.residency.resident},
        "spent": model.residency.spent,
        "phase": model.pause.phase,
        "lock": model.lock_ours,
        "worker": model.worker,
        "loaded": set(model.loaded) - model.unloading,
        "hand": hand,
    }


async def replay(steps: Sequence[Step]) -> list[str]:
    """Drive both; the events that happened."""
    model, happened = EngineModel(ShapeResidency(NARROW)), []
    async with shape_bench(NARROW) as bench:
        shell = Shell(bench)
        for step in steps:
            model.now = bench.now = model.now + 1
            (name, number), want = chosen(model, step), wanted(model, step)
            happened.append(f"{name} {want if name == 'want' else number}")
            told = drive(model, name, number, want), shell.drive(name, number, want)
            assert told[0] == told[1], happened
            await bench.settle()
            seen, said = shell.shown(), shown(model)
            assert not {key: (seen[key], said[key]) for key in said if seen[key] != said[key]}, happened
            if bench.workers and bench.worker.alive:
                assert bench.worker.spent <= bench.engine.shapes.residency.spent <= NARROW.executables
        for call in shell.calls:
            if call is not None:
                call.task.cancel()
        await asyncio.gather(*(call.task for call in shell.calls if call is not None), return_exceptions=True)
    return happened


@settings(max_examples=150)
@given(steps=STEPS)
def test_the_hosts_own_code_does_what_the_machines_say(steps: list[Step]) -> None:
    anyio.run(replay, steps)
