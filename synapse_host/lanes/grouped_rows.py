"""The rows of one request, computed in groups by one worker and put back into the order they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.lanes.group_messages import embed_message, rerank_message, token_bytes
from synapse_host.lanes.group_run import GroupPlan, GroupRun, Over, numbers_of
from synapse_host.lanes.host_fault import host_fault
from synapse_host.lanes.lane_pace import LanePace
from synapse_host.lanes.residency import Serving
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.exchange import Exchange
from synapse_host.values import value_object

if TYPE_CHECKING:
    from synapse_host.lanes.worker_share import ModelShapes

Grouped = Literal["embed", "rerank"]
#: What makes the message for the token rows of one group.
_MESSAGES = {"embed": embed_message, "rerank": rerank_message}


@value_object
class GroupedRows:
    """Carries ``rows`` through ``serving``; ``over`` hears of each group that began, whoever waits for it."""

    model: RegisteredModel
    serving: Serving
    turns: DeviceTurns
    pace: LanePace
    numbers: Iterator[int]
    over: Over
    operation: Grouped
    #: Bytes of answer for one row.
    width: int

    async def computed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str], plan: GroupPlan) -> bytes:
        """``width`` bytes for each row, in the order given; raises what the first group that failed did."""
        if self.serving.shapes is not None:
            return await self._shaped(rows, item_ids, plan, self.serving.shapes)
        run = self._run(rows, plan, self.over)
        run.begin()
        if len(rows) == 1:
            return bytes(numbers_of(await run.wait(0), item_ids))
        out = bytearray(len(rows) * self.width)
        for place, group in enumerate(plan.groups):
            exchange = await run.wait(place)
            try:
                self._put(out, exchange, group, item_ids)
            except BaseException:
                run.give_up()
                raise
        return bytes(out)

    async def _shaped(
        self, rows: Sequence[Sequence[int]], item_ids: Sequence[str], plan: GroupPlan, shapes: ModelShapes
    ) -> bytes:
        """The same under a lease of each group's shape, one after the other: first the shape, then the turn."""
        out = bytearray(len(rows) * self.width)
        for place, group in enumerate(plan.groups):
            self._put(out, await self._under_lease(rows, plan, place, shapes), group, item_ids)
        return bytes(out)

    async def _under_lease(
        self, rows: Sequence[Sequence[int]], plan: GroupPlan, place: int, shapes: ModelShapes
    ) -> Exchange:
        longest = max(len(rows[index]) for index in plan.groups[place])
        plan.wait.began(longest, self.turns.now())
        lease = shapes.lease(longest, admitted=plan.admitted)

        def over(_: int, exchange: Exchange, took_ms: float) -> None:
            lease.release()
            self.over(place, exchange, took_ms)

        run = None
        try:
            await lease.wait()
            run = self._run(rows, plan.only(place), over)
            plan.wait.turn = run
            run.begin()
            return await run.wait(0)
        finally:
            # A group that began is computed to its end, whoever waits, and keeps its shape for as long.
            if run is None or not run.begun:
                lease.release()

    def _run(self, rows: Sequence[Sequence[int]], plan: GroupPlan, over: Over) -> GroupRun:
        message = _MESSAGES[self.operation]
        try:
            grouped = [[rows[index] for index in group] for group in plan.groups]
            requests = [
                (
                    message(f"{self.operation}-{next(self.numbers)}", self.serving.model_ref, self.model, group),
                    token_bytes(group),
                )
                for group in grouped
            ]
            return GroupRun(self.turns, self.serving.worker, plan, requests, over, self.pace)
        except Exception as fault:
            raise host_fault("a group of rows", fault) from fault

    def _put(self, out: bytearray, exchange: Exchange, group: Sequence[int], item_ids: Sequence[str]) -> None:
        raw, width = numbers_of(exchange, [item_ids[index] for index in group]), self.width
        for position, index in enumerate(group):
            out[index * width : (index + 1) * width] = raw[position * width : (position + 1) * width]
