"""rerank.score: a query and candidates in, one raw score for each out, in the order they came."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import anyio.to_thread
from pydantic import Field, StrictStr

from synapse_host.admission.gate import Budget, Gate
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.operations.constraints import BudgetRule, Constraints, Name
from synapse_host.operations.envelope import inference_envelope, truncation_disclosure
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.operations.serving import INLINE_TOKENIZING_CHARS, refuse_longest, serving_lane, within_deadline
from synapse_host.time_limits import TimeLimits
from synapse_host.tokenization.pairs import ComposedPair

#: Candidates of an interactive request at most; more make it bulk (wire contract section 5).
INTERACTIVE_CANDIDATES = 20

#: Bytes a candidate is charged with beside its text and the query's: measured, 4 KiB of tokens, pairs and frames each.
CANDIDATE_BYTES = 4096
#: Characters a candidate counts for, beside its own and the query's, when deciding where pairs are composed: composing
#: one takes some 5 µs however short it is.
COMPOSING_CHARS = 8


class RerankScoreParams(Constraints):
    """One query and its candidates; the model may be named by either field."""

    query: StrictStr
    # Fail fast: a frame may hold millions of wrong items, and one is enough to say so.
    candidates: Annotated[list[StrictStr], Field(fail_fast=True)]
    model: Name | None = None
    model_id: Name | None = None


@dataclass(frozen=True, slots=True)
class RerankingService:
    """Carries rerank.score from parameters to reply."""

    lanes: LaneTable
    gate: Gate
    ledger: CertificationLedger
    budgets: BudgetRule
    max_text_chars: int
    module_generation: int
    table_epoch: int
    deadlines: TimeLimits = field(default_factory=TimeLimits)

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("rerank.score", "query", RerankScoreParams, self.score)]

    async def score(self, params: RerankScoreParams, context: RequestContext) -> Reply:
        """Score every candidate against the query; no candidate is dropped, and none is moved."""
        if not params.candidates:
            raise InvalidRequest("rerank.score got no candidates ([]); give at least one", channel=True)
        ids = [str(place) for place in range(len(params.candidates))]
        refuse_longest(["query", *ids], [params.query, *params.candidates], self.max_text_chars)
        budget = self.budgets.of(params, context)
        lane = serving_lane(
            self.lanes,
            self.ledger,
            task="rerank",
            model=_model_of(params),
            constraints=params,
            table_epoch=self.table_epoch,
        )
        with lane.lease():
            await lane.ensure_ready(budget)
            pairs, data = await self._admitted(lane, params, ids, budget)
        return self._reply(lane, pairs, data)

    async def _admitted(
        self, lane: Lane, params: RerankScoreParams, ids: list[str], budget: Budget
    ) -> tuple[list[ComposedPair], bytes]:
        # The query is charged with every candidate, since it is computed with each.
        size = sum(map(len, params.candidates)) + (len(params.query) + CANDIDATE_BYTES) * len(ids)
        with self.gate.holding(size):
            pairs = await _compose(lane, params.query, params.candidates)
            plan = lane.plan("rerank", [len(pair.ids) for pair in pairs], work_class(len(ids)))
            self.gate.admit(lane.turns, plan.work, budget)
            compute = partial(lane.rerank, [pair.ids for pair in pairs], ids, plan)
            return pairs, await within_deadline(self.deadlines, self.budgets.clock, budget, lane, compute)

    def _reply(self, lane: Lane, pairs: list[ComposedPair], data: bytes) -> Reply:
        payload = inference_envelope(
            lane.model, dims=1, table_epoch=self.table_epoch, module_generation=self.module_generation
        )
        payload["scores"] = list(struct.unpack(f"<{len(pairs)}f", data))
        payload["score_kind"] = lane.model.pair_template.score
        payload["work_class"] = str(work_class(len(pairs)))
        payload["real_token_counts"] = [pair.effective_tokens for pair in pairs]
        payload["truncation_disclosures"] = [truncation_disclosure(pair) for pair in pairs]
        return Reply(payload)


def work_class(candidates: int) -> WorkClass:
    """What a request of so many candidates counts as (wire contract section 5, reading 15)."""
    return WorkClass.INTERACTIVE if candidates <= INTERACTIVE_CANDIDATES else WorkClass.BULK


def _model_of(params: RerankScoreParams) -> str | None:
    if params.model is not None and params.model_id is not None and params.model != params.model_id:
        raise InvalidRequest(
            f"model {params.model!r} and model_id {params.model_id!r} name two models; give one of the fields",
            details={"model": params.model, "model_id": params.model_id},
        )
    return params.model or params.model_id


async def _compose(lane: Lane, query: str, candidates: list[str]) -> list[ComposedPair]:
    compose = partial(lane.pairs.compose, query, candidates)
    work = sum(map(len, candidates)) + (len(query) + COMPOSING_CHARS) * len(candidates)
    if work <= INLINE_TOKENIZING_CHARS:
        return compose()
    return await anyio.to_thread.run_sync(compose)
