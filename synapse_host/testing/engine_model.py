"""The pure machines of the Neural Engine put together, beside a plain account of requests, device and worker.

Shapes, pause and history of compilations decide as they do in a host; what it does between them is written down here
step by step. A test holds the host's own code against it: after every step both must show the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from synapse_host.lanes.compile_history import CompileHistory
from synapse_host.lanes.pause_state import Pause, PausePhase, PauseState
from synapse_host.lanes.shape_residency import Action, Compile, Evict, Fail, Grant, Shape, ShapeResidency
from synapse_host.testing.shape_worker import LADDER, LAYERS


@dataclass
class ModelCall:
    """One request: where it stands, and what became of it."""

    lane: str
    length: int
    #: ``loading``, ``waiting`` for its shape, ``granted`` and waiting for its turn, ``running``, or how it ended.
    state: str
    since: float = 0.0

    @property
    def open(self) -> bool:
        """Whether somebody still waits for it."""
        return self.state in ("loading", "waiting", "granted", "running")


@dataclass
class EngineModel:
    """A host with lanes of ``LAYERS``. Methods are what may happen from outside; ``enabled`` says which may now."""

    residency: ShapeResidency = field(default_factory=ShapeResidency)
    history: CompileHistory = field(default_factory=CompileHistory)
    pause: PauseState = field(default_factory=PauseState)
    now: float = 0.0
    calls: list[ModelCall] = field(default_factory=list)
    #: Lane -> its reference in the worker.
    loaded: dict[str, str] = field(default_factory=dict)
    worker: bool = False
    refs: int = 0
    lock_ours: bool = False
    lock_others: bool = False
    #: Requests in the order their turns were asked for; the one that computes, though its caller may be gone.
    turns: list[int] = field(default_factory=list)
    running: int | None = None
    #: A compilation or eviction: decided, then keeping turns from beginning, then in the worker's hands.
    decided: Action | None = None
    closing: Action | None = None
    held: bool = False
    #: LOAD and UNLOAD that wait for what the worker has in hand; lanes whose unloading has begun.
    control: list[tuple[str, str]] = field(default_factory=list)
    unloading: set[str] = field(default_factory=set)

    # --- what may happen ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether the worker has something in hand that it answers when it is told to."""
        return self.running is not None or self.held

    def open_calls(self) -> list[int]:
        """Requests somebody waits for."""
        return [number for number, call in enumerate(self.calls) if call.open]

    def want(self, lane: str, length: int) -> None:
        """A request of so many tokens."""
        call = ModelCall(lane, length, "loading")
        self.calls.append(call)
        if self.pause.active:
            call.state = "lane_paused"
        elif lane in self.loaded:
            self._lease(len(self.calls) - 1)
        elif not self._take_lock():
            call.state = "ane_resources_exhausted"
        elif ("load", lane) not in self.control:
            if not self.worker:
                self.worker, self.refs = True, 0
            self.control.append(("load", lane))
        self._settle()

    def cancel(self, number: int) -> int | None:
        """The deadline of a request passes; the shape it was kept by, where that was a compilation."""
        call = self.calls[number]
        blocking = self._blocking(call)
        before, call.state = call.state, "cancelled"
        if before == "waiting":
            self._follow(self.residency.cancel(number))
        elif before == "granted":
            self.turns.remove(number)
            self._follow(self.residency.release(number))
        self._settle()
        return blocking

    def answer(self, *, works: bool = True) -> None:
        """The worker answers what it has in hand; a refused eviction ends it."""
        queued = len(self.control)
        if self.running is not None:
            number, self.running = self.running, None
            if self.calls[number].state == "running":
                self.calls[number].state = "done"
            self._follow(self.residency.release(number))
        elif isinstance(self.closing, Evict):
            self._opened()
            if not works:
                self.crash()
                return
            self._follow(self.residency.evicted())
        else:
            self.history.ended(self.now)
            self._opened()
            self._follow(self.residency.compiled() if works else self.residency.compile_failed("no"), failed=not works)
        if self._ask_to_unload() and not self.busy:
            # The worker is asked for it before whoever waits for a load hears that it is done.
            self._do(*self.control.pop())
        self._settle(queued)

    def crash(self) -> None:
        """The worker's process ends, and is reaped."""
        self.history.ended(self.now)
        self._follow(self.residency.worker_lost("gone"))
        self._follow(self.residency.exited("gone"))
        for call in self.calls:
            if call.open:
                call.state = "engine_crashed"
        self.turns.clear()
        self.control.clear()
        self.unloading.clear()
        self.loaded.clear()
        self.running = self.decided = self.closing = None
        self.held = self.worker = False
        self._settle()

    def begin_pause(self) -> None:
        """An operator pauses the lanes."""
        self.pause.begin(Pause("measuring", 0, self.now + 60))
        self._settle()

    def resume(self) -> None:
        """The pause ends, early or on time."""
        self.pause.end()
        self._settle()

    def others_take_lock(self) -> None:
        """Another process takes the lock that is free."""
        self.lock_others = True

    def others_give_lock(self) -> None:
        """It gives it back."""
        self.lock_others = False
        self._settle()

    def enabled(self) -> list[str]:
        """What may happen now."""
        evictions = isinstance(self.closing, Evict)
        possible = {
            "want": True,
            "cancel": bool(self.open_calls()),
            "answer": self.busy,
            "fail": self.held and not evictions,
            "refuse_eviction": self.held and evictions,
            "crash": self.worker,
            # Of a load and an unload that follow from one answer either may be first: no script asks which.
            "pause": not self.pause.active and not self.control,
            "resume": self.pause.ends_later,
            "take_lock": not self.lock_ours and not self.lock_others,
            "give_lock": self.lock_others,
        }
        return [name for name, may in possible.items() if may]

    # --- what follows ------------------------------------------------------------------------------------------

    def _lease(self, number: int) -> None:
        call = self.calls[number]
        call.state, call.since = "waiting", self.now
        self._follow(self.residency.want(number, Shape(self.loaded[call.lane], call.length)))

    def _follow(self, actions: list[Action], *, failed: bool = False) -> None:
        for action in actions:
            if isinstance(action, Grant):
                self.calls[action.ticket].state = "granted"
                self.turns.append(action.ticket)
            elif isinstance(action, Fail):
                self.calls[action.ticket].state = "ane_resources_exhausted" if failed else "engine_crashed"
            else:
                assert self.decided is None, "two compilations or evictions at a time"
                self.decided = action

    def _opened(self) -> None:
        """Turns that were asked for meanwhile come first."""
        self.closing, self.held = None, False
        self._begin_turn()

    def _settle(self, queued: int = 0) -> None:
        """Let everything happen that does by itself; ``queued`` requests stood behind what the worker answered."""
        moved = True
        while moved:
            self._advance()
            moved = False
            if self.control and (queued or not self.busy):
                self._do(*self.control.pop(0))
                queued = max(0, queued - 1)
                moved = True
            moved = self._carry_out_pause() or moved

    def _begin_turn(self) -> None:
        if self.running is None and self.closing is None and self.turns:
            self.running = self.turns.pop(0)
            self.calls[self.running].state = "running"

    def _advance(self) -> None:
        self._begin_turn()
        if self.decided is not None:
            self.closing, self.decided = self.decided, None
        if self.closing is None or self.running is not None or self.held:
            return
        if isinstance(self.closing, Compile):
            if self.pause.active and not self.residency.waiting(self.closing.shape):
                # Nobody waits for it any more, and no pause is kept waiting for that.
                self._opened()
                self._follow(self.residency.compile_failed("paused"))
                self._advance()
                return
            self.history.began(self.closing.shape.length, self.now)
        self.held = True

    def _do(self, what: str, lane: str) -> None:
        if what == "load":
            self.refs += 1
            self.loaded[lane] = f"model-{self.refs}"
            self.residency.register(self.loaded[lane], layers=LAYERS[lane], smallest=LADDER[0])
            for number, call in enumerate(self.calls):
                if call.lane == lane and call.state == "loading":
                    self._lease(number)
            return
        self._follow(self.residency.unloaded(self.loaded.pop(lane)))
        self.unloading.discard(lane)
        if not self.loaded and not any(kind == "load" for kind, _ in self.control):
            self.worker = False
            self._follow(self.residency.exited("stopped"))

    def _carry_out_pause(self) -> bool:
        moved = False
        if self.pause.phase is PausePhase.DRAINING:
            idle = set(self.loaded) - {call.lane for call in self.calls if call.open} - self.unloading
            for lane in sorted(idle):
                self._follow(self.residency.leaving(self.loaded[lane], "leaving"))
            moved, self.unloading = bool(idle), self.unloading | idle
            if not self.loaded and not self.control:
                self.lock_ours = False
                self.pause.lock_given_back()
                return True
        moved = self._ask_to_unload() or moved
        if self.pause.phase is PausePhase.WAITING_FOR_LOCK and self._take_lock():
            self.pause.lock_taken()
            moved = True
        return moved

    def _ask_to_unload(self) -> bool:
        """Send UNLOAD for the lanes on their way out, once nothing of theirs is being compiled or dropped."""
        under_way = {shape.model for shape in (self.residency.compiling, self.residency.evicting) if shape is not None}
        asked = [
            ("unload", lane)
            for lane in sorted(self.unloading)
            if self.loaded[lane] not in under_way and ("unload", lane) not in self.control
        ]
        self.control += asked
        return bool(asked)

    def _take_lock(self) -> bool:
        self.lock_ours = self.lock_ours or not self.lock_others
        return self.lock_ours

    def _blocking(self, call: ModelCall) -> int | None:
        if call.state not in ("waiting", "granted"):
            return None
        if self.residency.compiling == Shape(self.loaded[call.lane], call.length):
            return call.length
        return self.history.blocking(call.length, call.since)
