"""rerank.score: a query and candidates in, one raw score for each out, in the order they came."""

from __future__ import annotations

import struct
from functools import partial
from typing import Annotated

from pydantic import Field, StrictStr

from synapse_host.admission.gate import Budget
from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.lane import Lane
from synapse_host.operations.constraints import Constraints, Name
from synapse_host.operations.envelope import truncation_disclosure
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.operations.serving import ServingDesk, refuse_longest
from synapse_host.tokenization.pairs import ComposedPair
from synapse_host.values import value_object

#: Candidates of an interactive request at most; more make it bulk (wire contract section 5).
INTERACTIVE_CANDIDATES = 20

#: Bytes a candidate is charged with beside its text and the query's: measured, 4 KiB of tokens, pairs and frames each.
CANDIDATE_BYTES = 4096
#: Characters a candidate counts for, beside its own and the query's, when deciding where pairs are composed: composing
#: one takes some 5 µs however short it is.
COMPOSING_CHARS = 8
#: Tokens no pair has.
WHOLE_PAIR = 2**31


class RerankScoreParams(Constraints):
    """One query and its candidates; the model may be named by either field."""

    query: StrictStr
    # Fail fast: a frame may hold millions of wrong items, and one is enough to say so.
    candidates: Annotated[list[StrictStr], Field(fail_fast=True)]
    model: Name | None = None
    model_id: Name | None = None


@value_object
class RerankingService:
    """Carries rerank.score from parameters to reply."""

    desk: ServingDesk
    max_text_chars: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("rerank.score", "query", RerankScoreParams, self.score)]

    async def score(self, params: RerankScoreParams, context: RequestContext) -> Reply:
        """Score every candidate against the query; no candidate is dropped, and none is moved."""
        if not params.candidates:
            raise InvalidRequest("rerank.score got no candidates ([]); give at least one", channel=True)
        ids = [str(place) for place in range(len(params.candidates))]
        refuse_longest(["query", *ids], [params.query, *params.candidates], self.max_text_chars)
        budget = self.desk.budgets.of(params, context)
        lane = await self.desk.door.certified_lane("rerank", _model_of(params), params)
        with lane.lease():
            await self.desk.door.ready(lane, budget)
            pairs, data = await self._admitted(lane, params, ids, budget)
        return self._reply(lane, pairs, data)

    async def _admitted(
        self, lane: Lane, params: RerankScoreParams, ids: list[str], budget: Budget
    ) -> tuple[list[ComposedPair], bytes]:
        # The query is charged with every candidate, since it is computed with each.
        size = sum(map(len, params.candidates)) + (len(params.query) + CANDIDATE_BYTES) * len(ids)
        with self.desk.gate.hold(size) as hold:
            # A lane of the catalog refuses a long pair with its length, so it has to be composed whole.
            limit = None if lane.model.catalog_id is None else WHOLE_PAIR
            compose = partial(lane.pairs.compose, params.query, params.candidates, limit=limit)
            pairs = await self.desk.tokenised(lane, budget, hold, _composing_work(params), compose)
            self.desk.door.refuse_too_long(lane, ids, [pair.submitted_tokens for pair in pairs])
            plan = lane.plan("rerank", [len(pair.ids) for pair in pairs], work_class(len(ids)))
            compute = partial(lane.rerank, [pair.ids for pair in pairs], ids, plan)
            return pairs, await self.desk.computed(lane, budget, plan, compute)

    def _reply(self, lane: Lane, pairs: list[ComposedPair], data: bytes) -> Reply:
        payload = self.desk.envelope(lane, 1)
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


def _composing_work(params: RerankScoreParams) -> int:
    """Characters that composing the pairs amounts to."""
    return sum(map(len, params.candidates)) + (len(params.query) + COMPOSING_CHARS) * len(params.candidates)
