"""Steps that every method served by a lane takes, in the order a request takes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, TypeVar

from synapse_host.admission.gate import Budget, ByteHold, Gate
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import DeadlineExceeded, InvalidRequest
from synapse_host.lanes.group_run import GroupPlan
from synapse_host.lanes.lane import Lane
from synapse_host.operations.constraints import BudgetRule
from synapse_host.operations.envelope import inference_envelope
from synapse_host.operations.lane_door import LaneDoor
from synapse_host.operations.tokenising import INLINE_TOKENIZING_CHARS, TokenisingPool
from synapse_host.time_limits import TimeLimits
from synapse_host.values import value_object

Answer = TypeVar("Answer")


@value_object
class ServingDesk:
    """What every inference method needs of the host."""

    door: LaneDoor
    gate: Gate
    aliases: AliasTable
    budgets: BudgetRule
    module_generation: int
    tokenising: TokenisingPool = field(default_factory=TokenisingPool)
    deadlines: TimeLimits = field(default_factory=TimeLimits)

    async def tokenised(
        self, lane: Lane, budget: Budget, hold: ByteHold, characters: int, work: Callable[[], Answer]
    ) -> Answer:
        """What ``work`` makes of so many characters; raises ``DeadlineExceeded`` when the time is up first."""
        if characters <= INLINE_TOKENIZING_CHARS:
            return work()
        run = partial(self.tokenising.run, work, hold, characters)
        return await self.in_time(
            lane, budget, run, done="had its text tokenised", remedy="raise deadline_ms or split it"
        )

    async def computed(
        self,
        lane: Lane,
        budget: Budget,
        plan: GroupPlan,
        compute: Callable[[], Awaitable[Answer]],
        *,
        done: str = "answered",
        remedy: str = "raise deadline_ms",
    ) -> Answer:
        """What ``compute`` answers, once its ``plan`` is admitted; it must ask for its turn before its first wait.

        Raises:
            DeadlineExceeded: it would begin or end too late, or did not end in time.
            SynapseError: ``shape_compiling``, where its time passed while it waited for a compilation.

        """
        self._admit(lane, budget, plan)
        try:
            return await self.in_time(lane, budget, compute, done=done, remedy=remedy)
        except DeadlineExceeded as late:
            raise lane.compiling(plan) or late from None

    def _admit(self, lane: Lane, budget: Budget, plan: GroupPlan) -> None:
        idle = lane.turns.free
        try:
            self.gate.admit(lane.turns, plan.work, budget)
        except DeadlineExceeded:
            if idle:
                # Only what the lane is expected to take speaks against it, and nothing else would ever correct that.
                lane.costs.doubt(plan.operation, plan.tokens)
            raise

    async def in_time(
        self, lane: Lane, budget: Budget, compute: Callable[[], Awaitable[Answer]], *, done: str, remedy: str
    ) -> Answer:
        """What ``compute`` answers; raises ``DeadlineExceeded`` when the request's time is up first.

        ``done`` is what the model had not done by then, and ``remedy`` what to do about it, for the message.
        """
        remaining = budget.remaining_ms(self.budgets.clock())
        try:
            with self.deadlines.limit(max(remaining, 0.0) / 1000):
                return await compute()
        except TimeoutError:
            lane.pace.missed(self.budgets.clock())
            raise DeadlineExceeded(
                f"deadline_ms of {budget.deadline_ms} passed before model {lane.model.model_id!r} {done}; {remedy}"
            ) from None

    def envelope(self, lane: Lane, dims: int) -> dict[str, Any]:
        """The envelope of an answer of ``lane``."""
        model, aliases = lane.model, self.aliases
        return inference_envelope(
            model,
            dims=dims,
            table_epoch=aliases.epoch,
            module_generation=self.module_generation,
            equivalent_to=aliases.equivalents(model.fingerprint),
        )


def refuse_longest(items: Sequence[str], texts: Sequence[str], limit: int) -> None:
    """Refuse, naming its item, a text of more than ``limit`` characters.

    A text is tokenised whole to be counted, which takes some 250 bytes of memory a character.
    """
    for item, text in zip(items, texts, strict=True):
        if len(text) > limit:
            raise InvalidRequest(
                f"item {item!r} has {len(text)} characters and a text may have {limit}; split it",
                details={"item_id": item, "characters": len(text), "max_text_chars": limit},
            )
