"""A lane driven through loading, serving, checks, deaths, unloading and recycling in every order, beside a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed, ModelInUse, ModelLoading, ProbeRequired, SynapseError
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.residency import Residency
from synapse_host.lanes.strikes import CATALOG, FREE_FORM, QUARANTINE_AT, Strikes
from synapse_host.supervision.worker_fault import WorkerFault, crash_error
from synapse_host.testing.workers.held_worker import HeldWorker
from synapse_host.testing.workers.stub_lane import stub_model

#: Ends of a worker that are its own doing, and ends that are not.
STRIKING, HARMLESS = ("exited", "protocol_fault", "silence"), ("stopped",)
#: Why there may be no worker at all; of these a refused handshake is a strike.
NO_START = ("handshake_refused", "handshake_timeout", "spawn_failed")
#: Turns of the event loop within which everything comes to rest.
TURNS = 60


class LoopTasks:
    """As much of a task group as a lane needs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.running: set[asyncio.Task[Any]] = set()

    def start_soon(self, work: Callable[..., Any], *args: Any, name: object = None) -> None:
        task = self._loop.create_task(work(*args), name=str(name))
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.running.discard(task)
        if not task.cancelled():
            # An exception here is a defect of the lane: its tasks answer for themselves.
            task.result()


class LaneMachine(RuleBasedStateMachine):
    """``state``, ``strikes`` and ``until`` are the model; everything else drives the real lane."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._note_defect)
        self.defects: list[Any] = []
        self.now = 0.0
        self.state, self.strikes, self.until = LaneState.UNLOADED, 0, None
        self.policy = FREE_FORM
        self.workers: list[HeldWorker] = []
        self.starting: asyncio.Future[HeldWorker] | None = None
        self.callers: list[tuple[asyncio.Task[Any], int]] = []
        self.operators: list[asyncio.Task[Any]] = []
        self.recycling = False
        #: Somebody asked while the lane unloads; somebody wants it unloaded once it is recycled.
        self.load_waits = self.unload_waits = False
        self.tokens = 0
        #: Tokens of rows of checks.
        self.checks: set[int] = set()

    @initialize(policy=st.sampled_from([FREE_FORM, CATALOG]), past=st.sampled_from(["none", "served", "struck"]))
    def begin(self, policy: Any, past: str) -> None:
        async def start(model: Any) -> Any:
            self.starting = self.loop.create_future()
            return await self.starting

        async def no_tokenizer(model: Any) -> Any:
            return None

        self.policy = policy
        self.tasks = LoopTasks(self.loop)
        runtime: Any = LaneRuntime(
            start,
            no_tokenizer,
            DeviceTurns(),
            self.tasks,
            lambda: self.now,
            quarantine=policy,  # type: ignore[arg-type]
        )
        self.lane = Lane(stub_model(), runtime)
        if past == "served":
            self.ask()
            self.load_ends("well")
            self.answer()
        elif past == "struck":
            for end in ("silence", "well"):
                self.load()
                self.load_ends(end)

    def teardown(self) -> None:
        for task in [
            *self.operators,
            *(task for task, _ in self.callers),
            *getattr(self, "tasks", LoopTasks(self.loop)).running,
        ]:
            task.cancel()
        self.settle()
        self.loop.close()

    def _note_defect(self, loop: object, context: dict[str, Any]) -> None:
        self.defects.append(context.get("exception") or context["message"])

    def settle(self) -> None:
        async def turn() -> None:
            loop: Any = self.loop
            for _ in range(TURNS):
                await asyncio.sleep(0)
                if not loop._ready:
                    return
            raise AssertionError(f"the lane does not come to rest within {TURNS} turns")

        self.loop.run_until_complete(turn())

    @property
    def worker(self) -> HeldWorker:
        return self.workers[-1]

    @property
    def held(self) -> bool:
        return any(not task.done() for task, _ in self.callers)

    def strike(self) -> None:
        if self.strikes >= QUARANTINE_AT and self.until is not None:
            return
        self.strikes += 1
        if self.strikes == QUARANTINE_AT and self.policy.cool_down_s is not None:
            self.until = self.now + self.policy.cool_down_s

    def clear(self) -> None:
        self.strikes, self.until = 0, None

    # --- requests ----------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.unload_waits)
    @rule()
    def ask(self) -> None:
        """A request: refused in quarantine, else it loads if need be, holds the lane and waits for its vector."""
        refused = self.strikes >= QUARANTINE_AT
        self.tokens += 1
        row = [self.tokens]

        async def request() -> Any:
            self.lane.refuse_quarantined()
            with self.lane.lease():
                await self.lane.load()
                return await self.lane.embed([row], ["a"])

        task = self.loop.create_task(request())
        self.callers.append((task, self.tokens))
        self.settle()
        if refused:
            assert isinstance(task.exception(), EngineCrashed if self.until is not None else ProbeRequired)
            return
        if self.state in (LaneState.UNLOADED, LaneState.FAILED):
            self.state = LaneState.LOADING
        self.load_waits = self.load_waits or (self.state is LaneState.UNLOADING and not self.recycling)
        assert not task.done()

    @precondition(lambda self: self.state in (LaneState.UNLOADED, LaneState.FAILED) and self.strikes < QUARANTINE_AT)
    @rule()
    def load(self) -> None:
        """Somebody loads it and asks for nothing: a preload, or an operator."""
        self.operators.append(self.loop.create_task(self.lane.load()))
        self.settle()
        self.state = LaneState.LOADING

    @precondition(lambda self: self.state is LaneState.READY)
    @rule()
    def check_itself(self) -> None:
        """A row of the check at load: it holds the lane and takes a turn as requests do."""
        self.tokens += 1
        self.checks.add(self.tokens)
        row = [self.tokens]

        async def check() -> Any:
            with self.lane.lease({"kind": "self_check", "check_id": "c"}):
                return 1, await self.lane.checked(row, "case")

        self.callers.append((self.loop.create_task(check()), self.tokens))
        self.settle()

    @precondition(lambda self: self.state is LaneState.READY and self.worker.begun)
    @rule()
    def answer(self) -> None:
        """What serves clears strikes; a check does not."""
        token = int.from_bytes(bytes(self.worker.begun[0].raw or b"")[:4], "little")
        self.worker.answer()
        self.settle()
        if self.strikes < QUARANTINE_AT and token not in self.checks:
            self.clear()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_up(self, data: Any) -> None:
        """A caller's deadline passes, or its connection ends; neither is the lane's concern."""
        waiting = [task for task, _ in self.callers if not task.done()]
        data.draw(st.sampled_from(waiting), label="caller").cancel()
        self.settle()

    # --- the worker --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.state is LaneState.LOADING)
    @rule(end=st.sampled_from(["well", "well", "well", "refused", *NO_START, *STRIKING]))
    def load_ends(self, end: Any) -> None:
        assert self.starting is not None
        if end in NO_START:
            crash = crash_error(WorkerFault(end, "no"), worker_id="w", returncode=1, output_tail="")
            self.starting.set_exception(crash)
        else:
            self.connect_and_load(end)
        self.starting = None
        self.settle()
        self.recycling = False
        if end == "well":
            self.state = LaneState.READY
        else:
            self.state = LaneState.FAILED
            if end in (*STRIKING, "handshake_refused"):
                self.strike()
            assert end in NO_START or self.worker.closed.is_set()
        if self.unload_waits:
            self.unload_waits = False
            self.state = LaneState.UNLOADING
            if end != "well":
                self.unloading_ended()

    def connect_and_load(self, end: Any) -> None:
        assert self.starting is not None
        self.workers.append(HeldWorker())
        self.starting.set_result(self.worker)
        self.settle()
        assert self.worker.asked == ["LOAD"]
        if end == "well":
            self.worker.agree()
        elif end == "refused":
            self.worker.refuse("oom")
        else:
            self.worker.die(end)

    @precondition(lambda self: self.state in (LaneState.READY, LaneState.UNLOADING) and self.workers)
    @rule(reason=st.sampled_from([*STRIKING, *HARMLESS]))
    def worker_dies(self, reason: Any) -> None:
        self.worker.die(reason)
        self.settle()
        if self.state is LaneState.READY:
            self.state = LaneState.UNLOADED
            if reason in STRIKING:
                self.strike()
        else:
            self.unloading_ended()

    # --- the operator ------------------------------------------------------------------------------------------

    @precondition(lambda self: not (self.recycling and self.held))
    @rule()
    def unload(self) -> None:
        # Once somebody waits for a load, what is unloading can no longer be asked to unload.
        loading = self.state is LaneState.LOADING or self.load_waits
        held, before = self.held, self.state
        task = self.loop.create_task(self.lane.unload())
        self.operators.append(task)
        self.settle()
        if self.recycling:
            assert not task.done()
            self.unload_waits = True
        elif held:
            assert isinstance(task.exception(), ModelInUse)
        elif loading:
            assert isinstance(task.exception(), ModelLoading)
        elif before is LaneState.READY:
            self.state = LaneState.UNLOADING
        elif before is not LaneState.UNLOADING:
            assert task.result() is None
            self.unloading_ended()

    @precondition(lambda self: self.state is LaneState.UNLOADING)
    @rule()
    def unloading_is_done(self) -> None:
        assert self.worker.asked == ["UNLOAD"]
        self.worker.agree()
        self.settle()
        self.unloading_ended()

    def unloading_ended(self) -> None:
        assert self.worker_gone()
        if self.recycling:
            self.state = LaneState.LOADING
            return
        self.state = LaneState.UNLOADED
        if self.strikes >= QUARANTINE_AT:
            self.clear()
        if self.load_waits:
            # It goes on whoever waits for it.
            self.load_waits, self.state = False, LaneState.LOADING

    def worker_gone(self) -> bool:
        return not self.workers or self.worker.closed.is_set()

    @precondition(lambda self: self.state is not LaneState.READY or not self.held)
    @rule()
    def recycle(self) -> None:
        """Upkeep asks for it only while nobody holds the lane."""
        possible = self.state is LaneState.READY
        assert self.lane._residency.start_recycling() == possible
        if possible:
            self.state, self.recycling = LaneState.UNLOADING, True
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 300.0, 601.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.until is not None and self.now >= self.until:
            self.clear()

    # --- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def the_lane_is_what_the_model_says(self) -> None:
        if not hasattr(self, "lane"):
            return
        assert self.defects == []
        assert (self.lane.state, self.lane.strikes.count) == (self.state, self.strikes)
        assert (self.lane.dims is not None) == (self.state is LaneState.READY)
        begun = sum(len(worker.begun) for worker in self.workers)
        assert self.lane.turns.running == begun <= 1
        assert len([worker for worker in self.workers if not worker.closed.is_set()]) <= 1

    @invariant()
    def every_caller_gets_its_own_vector_or_one_typed_error(self) -> None:
        for task, token in self.callers:
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            assert error is None or isinstance(error, SynapseError)
            assert error is not None or _first_component(task.result()) == token


def _first_component(vectors: tuple[int, bytes]) -> float:
    return memoryview(vectors[1]).cast("f")[0]


LaneMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
test_a_lane_in_any_order_of_events = LaneMachine.TestCase


@pytest.mark.parametrize(
    ("owner", "name"), [(Strikes, "served"), (Strikes, "release"), (Residency, "notice_death"), (DeviceTurns, "end")]
)
def test_the_machine_sees_a_step_left_out(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, lambda *_, **__: None)
    assert_seen()


def test_the_machine_sees_a_check_that_counts_as_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    async def checked(lane: Lane, row: list[int], case_id: str) -> bytes:
        return (await lane.embed([row], [case_id]))[1]

    monkeypatch.setattr(Lane, "checked", checked)
    assert_seen()


def assert_seen() -> None:
    # The same examples every time, and more than the machine is run with: it stops at the first that sees the fault.
    unsaved = settings(
        max_examples=2000,
        stateful_step_count=60,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises((AssertionError, ExceptionGroup)):
        run_state_machine_as_test(LaneMachine, settings=unsaved)
