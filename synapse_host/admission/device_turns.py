"""Execution permits of a device: so many computations at once, and who has the next (reading 36: per device). Pure.

No task need wait here: what asks is a callable, called when its turn comes, from whoever ends the turn before. The next
group is then on its way to its worker before anybody looks at the answer of the last one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from synapse_host.admission.fair_queue import FairQueue
from synapse_host.admission.prediction import DeviceLoad
from synapse_host.admission.rolling import Usual, Waits
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import BULK_KINDS, WorkClass

#: Seconds for which a kind of bulk is reckoned with when the last of it is over: who computes one after another asks at
#: once.
BULK_RETURNS_S = 0.25
#: The kinds of bulk that take turns before, or between, those of a class.
_MAY_PASS = {WorkClass.INTERACTIVE: BULK_KINDS, WorkClass.BULK: (WorkClass.JOB,)}


class DeviceTurns:
    """The permits of one device; ``clock`` counts seconds."""

    def __init__(self, most: int = 1, clock: Callable[[], float] = time.monotonic, waits: Waits | None = None) -> None:
        self._most = most
        self._clock = clock
        self._queue = FairQueue()
        self._running: set[Turn] = set()
        self._advancing = False
        #: How many keep the device from beginning anything, and who waits for what is running to end.
        self._closings = 0
        self._emptied: asyncio.Event | None = None
        self._usual = {work_class: Usual() for work_class in WorkClass}
        #: Groups and milliseconds each class waits with, those it has not asked for yet included.
        self._groups = dict.fromkeys(WorkClass, 0)
        self._ms = dict.fromkeys(WorkClass, 0.0)
        #: Groups that wait, or have yet to be asked for, of who was admitted without a kind of bulk.
        self._keeping = dict.fromkeys(BULK_KINDS, 0)
        self._ended_at = dict.fromkeys(BULK_KINDS, float("-inf"))
        self.waits = Waits() if waits is None else waits

    @property
    def running(self) -> int:
        """Computations begun and not ended."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._queue)

    @property
    def free(self) -> bool:
        """True when one that asked now would begin at once."""
        return not self._closings and len(self._running) < self._most and not self._queue

    def depth(self, work_class: WorkClass) -> int:
        """How many of a class wait for their turn."""
        return self._queue.depth(work_class)

    def load(self) -> DeviceLoad:
        """What is known of the device now, for predicting when another would begin."""
        now = self._clock()
        return DeviceLoad(
            permits=self._most,
            free=self.free,
            running_ms=tuple((turn.estimate_ms, self.age_ms(turn)) for turn in self._running),
            groups=self._groups,
            waiting_ms=self._ms,
            passed_over=self._queue.passed_over,
            passed_over_ms=self._queue.passed_over_s(now) * 1000,
            bulk_went_last=self._queue.bulk_went_last,
            bulk_running=any(turn.work_class.is_bulk for turn in self._running),
            held_back=self._keeping[WorkClass.BULK] > 0,
            interactive_ms=self._usual[WorkClass.INTERACTIVE].mean(now),
            interactive_most_ms=self._usual[WorkClass.INTERACTIVE].most(now),
            bulk_ms=max(self._most_ms(kind, now) for kind in BULK_KINDS),
            job_ms=self._most_ms(WorkClass.JOB, now),
        )

    def ask(self, turn: Turn) -> None:
        """Call ``turn.begin`` now, or when its turn comes."""
        now = self._clock()
        if not turn.continues:
            # Such as ``load`` said a moment ago, when this was admitted.
            passing = _MAY_PASS.get(turn.work_class, ())
            turn.keeps_back = tuple([kind for kind in passing if not self._is_here(kind, now)])
        self._queue.put(turn, now)
        self._usual[turn.work_class].note(turn.estimate_ms, now)
        self._book(turn, 1)
        self._book_rest(turn, 1)
        self._advance(now)

    def withdraw(self, turn: Turn) -> bool:
        """Take back what was asked; False where its turn has come already."""
        if not self._queue.remove(turn, self._clock()):
            return False
        self._book(turn, -1)
        self._book_rest(turn, -1)
        return True

    def end(self, turn: Turn) -> None:
        """A computation is over, in whatever way. What its request computes next has asked before, or never will."""
        self._running.remove(turn)
        self._book_rest(turn, -1)
        now = self._clock()
        if turn.work_class.is_bulk:
            self._ended_at[turn.work_class] = now
            self._usual[turn.work_class].ended(now)
        self._queue.ended(turn.work_class, now)
        if self._emptied is not None and not self._running:
            self._emptied.set()
        self._advance(now)

    def now(self) -> float:
        """The clock's second."""
        return self._clock()

    def waited_ms(self, turn: Turn) -> float:
        """Milliseconds a turn that has come was waited for."""
        return 0.0 if turn.began_at is None else (turn.began_at - turn.asked_at) * 1000

    def age_ms(self, turn: Turn) -> float:
        """Milliseconds since a turn came."""
        return 0.0 if turn.began_at is None else (self._clock() - turn.began_at) * 1000

    @asynccontextmanager
    async def held(self, work_class: WorkClass, estimate_ms: float = 0.0) -> AsyncIterator[None]:
        """Hold a permit for the length of the block; for a task that computes by other means than a lane's groups."""
        begun = asyncio.Event()
        turn = Turn(begun.set, work_class, estimate_ms)
        self.ask(turn)
        try:
            await begun.wait()
            yield
        finally:
            if not self.withdraw(turn):
                self.end(turn)

    @asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Nothing runs for the length of the block: turns that were begun end first, those asked for begin after it.

        For what the device does beside computing, such as compiling: it takes no permit, and no turn is counted longer
        for it.
        """
        self._closings += 1
        try:
            while self._running:
                self._emptied = self._emptied or asyncio.Event()
                await self._emptied.wait()
                self._emptied = None
            yield
        finally:
            self._closings -= 1
            if not self._closings:
                self._advance(self._clock())

    def _present(self, work_class: WorkClass) -> bool:
        """Whether something of a class runs, waits or has more to ask for."""
        return self._groups[work_class] > 0 or any(turn.work_class is work_class for turn in self._running)

    def _is_here(self, kind: WorkClass, now: float) -> bool:
        """Whether bulk of a kind may take a turn before one that asks now, as far as is known."""
        return now - self._ended_at[kind] <= BULK_RETURNS_S or self._present(kind)

    def _most_ms(self, kind: WorkClass, now: float) -> float:
        """What the largest turn of a kind of bulk takes that may come; 0 where none is to be reckoned with."""
        return self._usual[kind].most(now, here=self._present(kind)) if self._is_here(kind, now) else 0.0

    def _book(self, turn: Turn, sign: int) -> None:
        self._account(turn, sign, sign * turn.estimate_ms)

    def _book_rest(self, turn: Turn, sign: int) -> None:
        if turn.rest_groups:
            self._account(turn, sign * turn.rest_groups, sign * turn.rest_ms)

    def _account(self, turn: Turn, groups: int, milliseconds: float) -> None:
        work_class = turn.work_class
        for kind in turn.keeps_back:
            self._keeping[kind] += groups
        self._groups[work_class] += groups
        # Sums of fractions keep a hair when everything is taken out again, below zero as well.
        self._ms[work_class] = max(0.0, self._ms[work_class] + milliseconds) if self._groups[work_class] else 0.0

    def _advance(self, now: float) -> None:
        # What begins may end at once; a thousand of those must not become a thousand nested calls.
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._queue and not self._closings and len(self._running) < self._most:
                turn = self._queue.take(now)
                assert turn is not None
                self._book(turn, -1)
                turn.began_at = now
                self._running.add(turn)
                self.waits.note(self.waited_ms(turn))
                turn.begin()
        finally:
            self._advancing = False


class Devices:
    """The permits of every device class, made when first asked for."""

    def __init__(self, most_per_device: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most_per_device
        self._clock = clock
        self._turns: dict[str, DeviceTurns] = {}
        #: The last waits on any device.
        self.waits = Waits()

    @property
    def running(self) -> int:
        """Computations begun and not ended, on all devices."""
        return sum(turns.running for turns in self._turns.values())

    @property
    def waiting(self) -> int:
        """How many wait for their turn, on all devices."""
        return sum(turns.waiting for turns in self._turns.values())

    def depth(self, work_class: WorkClass) -> int:
        """How many of a class wait for their turn, on all devices."""
        return sum(turns.depth(work_class) for turns in self._turns.values())

    def of(self, device_class: str) -> DeviceTurns:
        """The permits of ``device_class``."""
        return self._turns.setdefault(device_class, DeviceTurns(self._most, self._clock, self.waits))
