"""microllm.oneshot: a prompt in, what a small model says after it out, greedily, with its identity."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr

from synapse_host.admission.admission import request_bytes
from synapse_host.admission.gate import Budget
from synapse_host.errors import EXCEPTIONS, InvalidRequest
from synapse_host.lanes.lane import Lane
from synapse_host.operations.constraints import Constraints, Name
from synapse_host.operations.envelope import truncation_disclosure
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.operations.serving import ServingDesk
from synapse_host.tokenization.model_tokenizer import EncodedText
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import Text


class OneshotParams(Constraints):
    """One prompt; ``model_id`` is another spelling of ``model``."""

    prompt: StrictStr
    max_tokens: Annotated[StrictInt, Field(ge=1)]
    model: Name | None = None
    model_id: Name | None = None
    grammar: StrictStr | None = None


@value_object
class GenerationLimits:
    """The most one request may ask for, and whether it may ask for a grammar."""

    max_tokens: int
    grammar_enabled: bool
    max_text_chars: int


@value_object
class GenerationService:
    """Carries generation requests from parameters to reply."""

    desk: ServingDesk
    limits: GenerationLimits

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("microllm.oneshot", "query", OneshotParams, self.oneshot)]

    async def oneshot(self, params: OneshotParams, context: RequestContext) -> Reply:
        """Generate after one prompt."""
        model = _model_of(params)
        self._refuse_ceiling(params.max_tokens)
        self._refuse_grammar(params.grammar)
        self._refuse_longest(params.prompt)
        budget = self.desk.budgets.of(params, context)
        lane = await self.desk.door.available_lane("generate", model, params)
        self._require_certified(lane)
        with lane.lease():
            await self.desk.door.ready(lane, budget)
            return await self._admitted(lane, params, budget)

    def _require_certified(self, lane: Lane) -> None:
        """Only text of this project's own engines is certified; another's has nothing to be held against."""
        if lane.model.certifiable:
            self.desk.door.ledger.require_certified(lane.model)

    def _refuse_ceiling(self, asked: int) -> None:
        if asked > self.limits.max_tokens:
            raise InvalidRequest(
                f"microllm.oneshot: params.max_tokens = {asked} passes the ceiling of {self.limits.max_tokens} "
                "(setting microllm.max_tokens); ask for fewer",
                channel=True,
            )

    def _refuse_grammar(self, grammar: str | None) -> None:
        """A grammar is obeyed or refused, never left out; and no engine here is certified to obey one."""
        if not grammar:
            return
        why = (
            "no lane of this host decodes under a grammar"
            if self.limits.grammar_enabled
            else "grammars are switched off (setting microllm.grammar_enabled)"
        )
        raise EXCEPTIONS["grammar_disabled"](f"the request carries a grammar and {why}; send the prompt without it")

    def _refuse_longest(self, prompt: str) -> None:
        limit = self.limits.max_text_chars
        if len(prompt) > limit:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} characters and a text may have {limit}; shorten it",
                details={"characters": len(prompt), "max_text_chars": limit},
            )

    async def _admitted(self, lane: Lane, params: OneshotParams, budget: Budget) -> Reply:
        with self.desk.gate.hold(request_bytes([params.prompt])) as hold:
            encode = partial(_encode, lane, params.prompt, _room(lane, params.max_tokens))
            prompt = await self.desk.tokenised(lane, budget, hold, len(params.prompt), encode)
            plan = lane.generation_plan(params.max_tokens)
            made = await self.desk.computed(
                lane,
                budget,
                plan,
                partial(lane.generate, prompt.ids, params.max_tokens, plan),
                done=f"had generated {params.max_tokens} tokens",
                remedy="raise deadline_ms or ask for fewer",
            )
        return self._reply(lane, prompt, made)

    def _reply(self, lane: Lane, prompt: EncodedText, made: Text) -> Reply:
        ids = list(made.generated_token_ids or [])
        payload = self.desk.envelope(lane, 0)
        payload.update(
            text=lane.tokenizer.continuation(prompt.ids, ids),
            finish_reason=made.finish_reason,
            n_prompt=made.n_prompt,
            n_gen=made.n_gen,
            generated_token_ids=ids,
            real_token_counts=[prompt.effective_tokens],
            truncation_disclosures=[truncation_disclosure(prompt)],
        )
        return Reply(payload)


def _model_of(params: OneshotParams) -> str | None:
    if params.model is not None and params.model_id is not None and params.model != params.model_id:
        raise InvalidRequest(
            f"microllm.oneshot: model {params.model!r} and model_id {params.model_id!r} name two models; give one",
            channel=True,
        )
    return params.model or params.model_id


def _room(lane: Lane, max_tokens: int) -> int:
    """Tokens left for the prompt in the context that prompt and reply share."""
    context, special = lane.model.max_tokens, lane.tokenizer.special_tokens
    room = context - max_tokens
    if room < special + 1:
        most = context - special - 1
        remedy = f"ask for at most {most}" if most > 0 else f"load it with max_tokens of {special + 2} or more"
        raise InvalidRequest(
            f"max_tokens {max_tokens} leaves {max(room, 0)} tokens for the prompt in the context of {context} that "
            f"model {lane.model.model_id!r} was loaded with; {remedy}",
            details={"max_tokens": max_tokens, "context_tokens": context},
        )
    return room


def _encode(lane: Lane, prompt: str, room: int) -> EncodedText:
    (encoded,) = lane.tokenizer.encode([prompt], keep=room)
    if not encoded.ids:
        raise InvalidRequest(
            "the prompt has no tokens under this model's tokenizer; give it some text", details={"parameter": "prompt"}
        )
    return encoded
