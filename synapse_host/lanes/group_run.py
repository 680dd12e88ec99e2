"""The groups of one request on their way through a device, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.prediction import Work
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass
from synapse_host.lanes.lane_pace import LanePace
from synapse_host.lanes.worker_errors import embed_error
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import Message, Scores, VectorsHeader


@dataclass(slots=True)
class ShapeWait:
    """What a request with shapes waits for: the shape of ``tokens`` since a second of the clock, then its turn."""

    tokens: int = 0
    since: float = 0.0
    turn: GroupRun | None = None

    def began(self, tokens: int, now: float) -> None:
        """The wait for another group began."""
        self.tokens, self.since, self.turn = tokens, now, None

    @property
    def waiting(self) -> bool:
        """Whether it waits; False before its first group, and while one is computed."""
        return self.tokens > 0 and (self.turn is None or not self.turn.begun)


def _untold(rows: int) -> None:
    """Nobody asks how far a request is."""


@value_object
class GroupPlan:
    """How a request is computed: the indices of its rows in groups, and of each its padded tokens and its estimate."""

    operation: str
    work_class: WorkClass
    groups: Sequence[Sequence[int]]
    tokens: Sequence[int]
    group_ms: Sequence[float]
    wait: ShapeWait = field(default_factory=ShapeWait)
    #: Whether the estimates rest on enough that was measured for a refusal to rest on them.
    known: bool = True
    #: Whether it is a request's; for what is not, such as a probe, no shape is compiled in a pause.
    admitted: bool = True
    #: Told the rows of each group that is over.
    told: Callable[[int], None] = _untold

    def only(self, place: int) -> GroupPlan:
        """The plan of one group alone."""
        one = slice(place, place + 1)
        return replace(self, groups=self.groups[one], tokens=self.tokens[one], group_ms=self.group_ms[one])

    @property
    def work(self) -> Work:
        """What admission has to know."""
        return Work(self.work_class, self.group_ms, self.known)


#: Told that the group at a place is over, and how many milliseconds after its turn began; its exchange is settled.
Over = Callable[[int, Exchange, float], None]


class GroupRun:
    """One request's groups, each a message with its token ids.

    A group asks for its turn while the one before it still has its own: whoever asked before that goes first, and where
    nobody did, the device is not idle between the two. ``over`` is called for each group that began, whoever waits.
    """

    def __init__(
        self,
        turns: DeviceTurns,
        worker: Worker,
        plan: GroupPlan,
        requests: Sequence[tuple[Message, bytes]],
        over: Over,
        pace: LanePace,
    ) -> None:
        self._turns = turns
        self._worker = worker
        self._plan = plan
        self._over = over
        self._pace = pace
        self._given_up = False
        # Written out before any of them has its turn: a worker then waits for the sending alone.
        self.exchanges = [
            worker.exchange(message, ids, drained=partial(self._drained, place))
            for place, (message, ids) in enumerate(requests)
        ]
        first_ms = plan.group_ms[0]
        rest_ms = sum(plan.group_ms) - first_ms
        self._places = [Turn(partial(self._begin, 0), plan.work_class, first_ms, len(plan.groups) - 1, rest_ms)]

    @property
    def begun(self) -> bool:
        """Whether the turn of its first group has come."""
        return self._places[0].began_at is not None

    def begin(self) -> None:
        """Ask for the first turn; one that the device is free for has begun when this returns."""
        self._ask()

    async def wait(self, place: int) -> Exchange:
        """The settled exchange of a group; cancelling stops the wait, and the work where it has not begun."""
        exchange = self.exchanges[place]
        try:
            await exchange.done.wait()
        except BaseException:
            self.give_up()
            raise
        return exchange

    def give_up(self) -> None:
        """Nobody waits any more: what has not begun never does, and what has is read to its end."""
        self._given_up = True
        for turn, exchange in zip(self._places, self.exchanges, strict=False):
            if self._turns.withdraw(turn):
                self._pace.withdrawn()
            elif not exchange.done.is_set():
                self._worker.abandon(exchange)

    def _ask(self) -> None:
        self._pace.asked()
        self._turns.ask(self._places[-1])

    def _begin(self, place: int) -> None:
        turn = self._places[place]
        self._pace.began(self._turns.waited_ms(turn))
        self._worker.submit(self.exchanges[place])

    def _following(self, place: int) -> Turn:
        before, estimate = self._places[-1], self._plan.group_ms[place]
        return Turn(
            partial(self._begin, place),
            self._plan.work_class,
            estimate,
            rest_groups=before.rest_groups - 1,
            rest_ms=before.rest_ms - estimate,
            continues=True,
            keeps_back=before.keeps_back,
        )

    def _drained(self, place: int) -> None:
        turn, exchange = self._places[place], self.exchanges[place]
        try:
            self._over(place, exchange, self._turns.age_ms(turn))
            if not self._given_up and exchange.answered and place + 1 < len(self.exchanges):
                self._places.append(self._following(place + 1))
                self._ask()
        finally:
            self._pace.ended()
            self._turns.end(turn)


def numbers_of(exchange: Exchange, item_ids: Sequence[str]) -> bytes | bytearray:
    """The numbers of one settled group; raises what it failed with, naming one of ``item_ids`` where it was one row."""
    try:
        reply, raw = exchange.outcome()
    except WorkerRefusal as refusal:
        raise embed_error(refusal, item_ids) from refusal
    assert isinstance(reply, VectorsHeader | Scores)
    assert raw is not None
    return raw
