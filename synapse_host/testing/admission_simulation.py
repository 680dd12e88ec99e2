"""One device, its real queue and the real admission, in virtual time: what is asked, admitted, computed and late.

Service times are log-normal about their estimate; a thousand of a thousand lie between 0.3 and 3 times it. Everything
follows from the seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

from synapse_host.admission.admission import Refused, decide_time
from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.prediction import HEADROOM, Prediction, Work
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass

INTERACTIVE, BULK, JOB = WorkClass.INTERACTIVE, WorkClass.BULK, WorkClass.JOB
#: Least and most that a service time is of its estimate.
LEAST, MOST = 0.3, 3.0
#: Of the logarithm: three of them reach from the estimate to MOST.
SPREAD = math.log(MOST) / 3


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who asks for what; times are milliseconds.

    Queries come in bursts of one to ``burst_most``, ``burst_every_ms`` apart on average and ``burst_quiet_ms`` at
    least; or ``queries_always`` of them are asked for at any time. ``jobs`` and ``batches_always`` durable jobs and
    requests always have something to compute; inline batches come ``batch_every_ms`` apart, and jobs of a few groups
    ``job_every_ms``. ``named`` is whether
    requests name their deadlines, ``known`` whether what they take was measured often enough.
    """

    query_ms: float = 5.0
    query_class: WorkClass = INTERACTIVE
    burst_every_ms: float | None = None
    burst_most: int = 3
    burst_quiet_ms: float = 0.0
    queries_always: int = 0
    query_deadlines: tuple[float, float] = (200.0, 3000.0)
    group_ms: float = 100.0
    jobs: int = 0
    batches_always: int = 0
    batch_every_ms: float | None = None
    batch_deadlines: tuple[float, float] = (500.0, 8000.0)
    job_every_ms: float | None = None
    job_groups_most: int = 8
    spread: float = SPREAD
    named: bool = True
    known: bool = True


@dataclass(slots=True)
class Request:
    """One request and what became of it."""

    work: Work
    asked_at: float
    deadline_ms: float
    predicted: Prediction
    started_at: float | None = None
    #: Whether anything computed from its admission to its start took more than ``HEADROOM`` times its estimate.
    estimates_were_wrong: bool = False
    bulk_groups: int = 0

    @property
    def start_delay_ms(self) -> float:
        """From its admission to its start."""
        return math.inf if self.started_at is None else self.started_at - self.asked_at

    @property
    def late_by_queueing(self) -> bool:
        """Whether it began too late to end in time, had it taken what it was expected to."""
        return self.start_delay_ms + sum(self.work.group_ms) > self.deadline_ms


@dataclass(slots=True)
class Outcome:
    """What a run gave."""

    requests: list[Request] = field(default_factory=list)
    refused: int = 0
    #: Of these, those that nobody was before.
    refused_idle: int = 0
    turns: dict[WorkClass, int] = field(default_factory=lambda: dict.fromkeys(WorkClass, 0))
    busy_ms: dict[WorkClass, float] = field(default_factory=lambda: dict.fromkeys(WorkClass, 0.0))
    #: Groups that each durable job had computed.
    job_groups: list[int] = field(default_factory=list)
    #: The most turns that one of each class saw others take while it waited.
    longest_wait_turns: dict[WorkClass, int] = field(default_factory=lambda: dict.fromkeys(WorkClass, 0))

    def started(self, work_class: WorkClass) -> list[Request]:
        """The requests of a class that began."""
        return [it for it in self.requests if it.work.work_class is work_class and it.started_at is not None]

    def delay_ms(self, work_class: WorkClass, share: float) -> float:
        """The start delay that ``share`` of a class did not pass."""
        delays = sorted(it.start_delay_ms for it in self.started(work_class))
        return delays[max(0, math.ceil(share * len(delays)) - 1)]

    @property
    def mean_group_ms(self) -> float:
        """What a group of bulk work took on average."""
        turns = self.turns[BULK] + self.turns[JOB]
        return (self.busy_ms[BULK] + self.busy_ms[JOB]) / max(1, turns)

    @property
    def bulk_share(self) -> float:
        """The bulk share of all turns."""
        return (self.turns[BULK] + self.turns[JOB]) / max(1, sum(self.turns.values()))

    @property
    def late(self) -> list[Request]:
        """Admitted requests that began too late."""
        return [it for it in self.requests if it.started_at is not None and it.late_by_queueing]

    @property
    def late_without_reason(self) -> list[Request]:
        """Those for which no estimate was wrong by more than the stated factor."""
        return [it for it in self.late if not it.estimates_were_wrong]


class Simulation:
    """A run of one scenario; ``run`` ends after so many turns."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.outcome = Outcome(job_groups=[0] * scenario.jobs)
        self._random = random.Random(seed)  # noqa: S311 - chance, not secrets
        self._now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._turns = DeviceTurns(clock=lambda: self._now_ms / 1000)
        self._took = 0
        #: Requests that have not begun; and what runs, what it takes and what it was to take.
        self._waiting: list[Request] = []
        self._running: tuple[WorkClass, float, float] | None = None

    def run(self, turns: int) -> Outcome:
        """Let so many turns be taken; the same seed gives the same outcome."""
        it = self.scenario
        for number in range(it.jobs):
            self._next_job_group(number)
        for _ in range(it.batches_always):
            self._batch_for_ever()
        for _ in range(it.queries_always):
            self._query_for_ever()
        if it.burst_every_ms is not None:
            self._at(0.0, self._burst)
        if it.batch_every_ms is not None:
            self._at(0.0, self._batch)
        if it.job_every_ms is not None:
            self._at(0.0, self._short_job)
        while self._events and self._took < turns:
            self._now_ms, _, happens = heapq.heappop(self._events)
            happens()
        return self.outcome

    # --- who asks --------------------------------------------------------------------------------------------------

    def _burst(self) -> None:
        for _ in range(self._random.randint(1, self.scenario.burst_most)):
            self._query()
        assert self.scenario.burst_every_ms is not None
        quiet = self.scenario.burst_quiet_ms
        gap = quiet + self._random.expovariate(1 / max(1.0, self.scenario.burst_every_ms - quiet))
        self._at(self._now_ms + gap, self._burst)

    def _query(self) -> None:
        estimate = self.scenario.query_ms * self._random.uniform(0.5, 2.0)
        self._ask(Work(self.scenario.query_class, [estimate]), self._random.uniform(*self.scenario.query_deadlines))

    def _batch(self) -> None:
        groups = [self._group_ms() for _ in range(self._random.randint(1, 6))]
        self._ask(Work(BULK, groups), self._random.uniform(*self.scenario.batch_deadlines))
        assert self.scenario.batch_every_ms is not None
        self._at(self._now_ms + self._random.expovariate(1 / self.scenario.batch_every_ms), self._batch)

    def _short_job(self) -> None:
        self._short_job_group(self._random.randint(1, self.scenario.job_groups_most))
        assert self.scenario.job_every_ms is not None
        self._at(self._now_ms + self._random.expovariate(1 / self.scenario.job_every_ms), self._short_job)

    def _short_job_group(self, left: int) -> None:
        if left:
            self._begin_turn(JOB, self._group_ms(), lambda _: self._short_job_group(left - 1))

    def _query_for_ever(self, _before: Turn | None = None) -> None:
        estimate = self.scenario.query_ms * self._random.uniform(0.5, 2.0)
        self._begin_turn(INTERACTIVE, estimate, self._query_for_ever)

    def _batch_for_ever(self, _before: Turn | None = None) -> None:
        self._begin_turn(BULK, self._group_ms(), self._batch_for_ever)

    def _next_job_group(self, number: int) -> None:
        def over(_turn: Turn) -> None:
            self.outcome.job_groups[number] += 1
            self._next_job_group(number)

        self._begin_turn(JOB, self._group_ms(), over)

    def _group_ms(self) -> float:
        return self.scenario.group_ms * self._random.uniform(0.7, 1.0)

    # --- what becomes of it ----------------------------------------------------------------------------------------

    def _ask(self, work: Work, deadline_ms: float) -> None:
        work, load = replace(work, known=self.scenario.known), self._turns.load()
        decision = decide_time(
            work, load, max_queue_ms=math.inf, remaining_ms=deadline_ms, deadline_named=self.scenario.named
        )
        if isinstance(decision, Refused):
            self.outcome.refused += 1
            self.outcome.refused_idle += load.free
            return
        request = Request(work, self._now_ms, deadline_ms, decision)
        self._note_running(request)
        self.outcome.requests.append(request)
        self._waiting.append(request)
        self._group(request, 0)

    def _group(self, request: Request, place: int, keeps_back: tuple[WorkClass, ...] = ()) -> None:
        work = request.work
        rest = work.group_ms[place + 1 :]

        def begun() -> None:
            if place == 0:
                request.started_at = self._now_ms
                self._waiting.remove(request)

        def over(turn: Turn) -> None:
            if rest:
                self._group(request, place + 1, turn.keeps_back)

        ahead = len(rest), sum(rest)
        self._begin_turn(work.work_class, work.group_ms[place], over, begun, ahead, place > 0, keeps_back)

    def _begin_turn(
        self,
        work_class: WorkClass,
        estimate_ms: float,
        over: Callable[[Turn], None],
        begun: Callable[[], None] = lambda: None,
        rest: tuple[int, float] = (0, 0.0),
        continues: bool = False,
        keeps_back: tuple[WorkClass, ...] = (),
    ) -> None:
        seen = self._took

        def begin() -> None:
            longest = self.outcome.longest_wait_turns
            longest[work_class] = max(longest[work_class], self._took - seen)
            self._took += 1
            begun()
            self._compute(turn, over)

        turn = Turn(begin, work_class, estimate_ms, *rest, continues, keeps_back)
        self._turns.ask(turn)

    def _compute(self, turn: Turn, over: Callable[[Turn], None]) -> None:
        factor = math.exp(self._random.gauss(0.0, self.scenario.spread)) if self.scenario.spread else 1.0
        takes = turn.estimate_ms * min(max(factor, LEAST), MOST)
        outcome = self.outcome
        outcome.turns[turn.work_class] += 1
        outcome.busy_ms[turn.work_class] += takes
        for request in self._waiting:
            request.estimates_were_wrong |= takes > HEADROOM * turn.estimate_ms
            request.bulk_groups += turn.work_class.is_bulk
        self._running = turn.work_class, takes, turn.estimate_ms

        def ended() -> None:
            self._running = None
            over(turn)
            self._turns.end(turn)

        self._at(self._now_ms + takes, ended)

    def _note_running(self, request: Request) -> None:
        """What runs now is computed before it."""
        if self._running is not None:
            work_class, takes, estimate = self._running
            request.estimates_were_wrong = takes > HEADROOM * estimate
            request.bulk_groups += work_class.is_bulk

    def _at(self, time_ms: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_ms, next(self._numbers), happens))
