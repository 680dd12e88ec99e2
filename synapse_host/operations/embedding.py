"""embed.query and embed.batch: text in, vectors with their identity out, or a job where that is too much at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

from pydantic import Field, StrictStr

from synapse_host.admission.admission import request_bytes
from synapse_host.admission.gate import Budget
from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import InvalidRequest
from synapse_host.lanes.lane import Lane
from synapse_host.operations.constraints import Constraints, Name, Params
from synapse_host.operations.durable_jobs import JobService, job_key
from synapse_host.operations.envelope import truncation_disclosure
from synapse_host.operations.registry import Method, RawVectors, Reply, RequestContext
from synapse_host.operations.serving import ServingDesk, refuse_longest
from synapse_host.tokenization.model_tokenizer import EncodedText
from synapse_host.tokenization.text_prompts import InputType
from synapse_host.values import value_object

#: No tokenizer of the catalog makes more of a character, however it is normalised: a byte is a token at least.
MOST_TOKENS_A_CHARACTER = 16
#: Bytes, as they are charged, of several texts that are answered inline: as much as one stretch of a job. A batch is
#: tokenised whole before its first turn, and nothing stops the thread that does it.
MOST_INLINE_BYTES = 1024 * 1024
#: Characters of a large batch that are tokenised at a time to be counted; their bytes are charged meanwhile.
PORTION_CHARS = 4 * 1024 * 1024


class EmbedQueryParams(Constraints):
    """One text."""

    text: StrictStr
    id: Name = "query"
    model: Name | None = None
    input_type: InputType = "query"


class EmbedItem(Params):
    """One text with the caller's id."""

    id: Name
    text: StrictStr


class EmbedBatchParams(Constraints):
    """Several texts; a bare text gets its index as id."""

    # Fail fast: a frame may hold millions of wrong items, and one is enough to say so.
    items: Annotated[list[EmbedItem | StrictStr], Field(fail_fast=True)] | None = None
    texts: Annotated[list[StrictStr], Field(fail_fast=True)] | None = None
    model: Name | None = None
    request_key: Annotated[StrictStr, Field(max_length=256)] | None = None
    input_type: InputType = "document"


@value_object
class InlineLimits:
    """The most an inline batch may hold."""

    max_items: int
    max_tokens: int
    max_text_chars: int


@value_object
class EmbeddingService:
    """Carries embedding requests from parameters to reply; ``jobs`` takes what is too large for an inline answer."""

    desk: ServingDesk
    limits: InlineLimits
    jobs: JobService
    byte_budget: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("embed.query", "query", EmbedQueryParams, self.query),
            Method("embed.batch", "query", EmbedBatchParams, self.batch),
        ]

    async def query(self, params: EmbedQueryParams, context: RequestContext) -> Reply:
        """Embed one text."""
        return await self._embed(params, [params.id], [params.text], context, WorkClass.INTERACTIVE)

    async def batch(self, params: EmbedBatchParams, context: RequestContext) -> Reply:
        """Embed several texts at once, or take them as a job; results carry the caller's ids."""
        ids, texts = _items(params)
        size = request_bytes(texts)
        try:
            if len(ids) > self.limits.max_items:
                raise _TooMuch("items", len(ids), self.limits.max_items)
            most = min(self.byte_budget, MOST_INLINE_BYTES)
            if size > most and len(ids) > 1:
                raise _TooMuch("bytes", size, most)
            return await self._embed(params, ids, texts, context, WorkClass.BULK)
        except _TooMuch as excess:
            key = job_key(params.request_key, excess.details, excess.what)
            return await self._as_job(params, key, ids, texts, context)

    async def _as_job(
        self, params: EmbedBatchParams, key: str, ids: list[str], texts: list[str], context: RequestContext
    ) -> Reply:
        refuse_longest(ids, texts, self.limits.max_text_chars)
        lane = await self.desk.door.certified_lane("embed", params.model, params)
        _refuse_queries(lane, params.input_type)
        if lane.model.catalog_id is not None:
            await self._refuse_too_long_of(lane, self.desk.budgets.of(params, context), ids, texts)
        return await self.jobs.submit(lane, key, params, ids, texts)

    async def _refuse_too_long_of(self, lane: Lane, budget: Budget, ids: list[str], texts: list[str]) -> None:
        """Count, before a job is made of them, the texts that may be too long for a lane of the catalog."""
        long = [at for at, text in enumerate(texts) if MOST_TOKENS_A_CHARACTER * len(text) > lane.model.max_tokens]
        if not long:
            return
        with lane.lease():
            await self.desk.door.ready(lane, budget)
            for some in _portions(long, texts, self.limits.max_items):
                read = [texts[at] for at in some]
                with self.desk.gate.hold(request_bytes(read)) as hold:
                    encode = partial(lane.tokenizer.encode, read)
                    rows = await self.desk.tokenised(lane, budget, hold, sum(map(len, read)), encode)
                self.desk.door.refuse_too_long(lane, [ids[at] for at in some], [row.submitted_tokens for row in rows])

    async def _embed(
        self,
        params: EmbedQueryParams | EmbedBatchParams,
        ids: list[str],
        texts: list[str],
        context: RequestContext,
        work_class: WorkClass,
    ) -> Reply:
        refuse_longest(ids, texts, self.limits.max_text_chars)
        budget = self.desk.budgets.of(params, context)
        lane = await self.desk.door.certified_lane("embed", params.model, params)
        with lane.lease():
            await self.desk.door.ready(lane, budget)
            reply = await self._admitted(lane, ids, texts, params.input_type, budget, work_class)
            if lane.tokenizer.prompts:
                reply.payload["input_type"] = params.input_type
            return reply

    async def _admitted(
        self,
        lane: Lane,
        ids: list[str],
        texts: list[str],
        input_type: InputType,
        budget: Budget,
        work_class: WorkClass,
    ) -> Reply:
        with self.desk.gate.hold(request_bytes(texts)) as hold:
            encode = partial(lane.tokenizer.encode, texts, input_type=input_type)
            rows = await self.desk.tokenised(lane, budget, hold, sum(map(len, texts)), encode)
            self.desk.door.refuse_too_long(lane, ids, [row.submitted_tokens for row in rows])
            _refuse_wordless(rows, ids)
            total = sum(row.effective_tokens for row in rows)
            if len(rows) > 1 and total > self.limits.max_tokens:
                raise _TooMuch("tokens", total, self.limits.max_tokens)
            plan = lane.plan("embed", [len(row.ids) for row in rows], work_class)
            compute = partial(lane.embed, [row.ids for row in rows], ids, plan)
            dims, data = await self.desk.computed(lane, budget, plan, compute)
        return self._reply(lane, ids, rows, dims, data)

    def _reply(self, lane: Lane, ids: Sequence[str], rows: Sequence[EncodedText], dims: int, data: bytes) -> Reply:
        payload = self.desk.envelope(lane, dims)
        payload["vectors"] = [
            {"id": item, "content_sha256": row.content_sha256, "submitted_sha256": row.submitted_sha256}
            for item, row in zip(ids, rows, strict=True)
        ]
        payload["real_token_counts"] = [row.effective_tokens for row in rows]
        payload["truncation_disclosures"] = [truncation_disclosure(row) for row in rows]
        return Reply(payload, RawVectors(len(rows), dims, data))


def _refuse_queries(lane: Lane, input_type: InputType) -> None:
    """A job embeds documents: its texts are kept and taken up again without a word about what they are for."""
    if lane.model.prompts and input_type != "document":
        raise InvalidRequest(
            f"a job embeds documents and input_type is {input_type!r}; send queries in batches small enough to be "
            "answered at once",
            details={"parameter": "input_type"},
        )


def _portions(places: Sequence[int], texts: Sequence[str], most: int) -> Iterator[list[int]]:
    """``places`` in portions of at most ``most`` texts, and of PORTION_CHARS characters or one text."""
    portion: list[int] = []
    characters = 0
    for place in places:
        if portion and (len(portion) == most or characters + len(texts[place]) > PORTION_CHARS):
            yield portion
            portion, characters = [], 0
        portion.append(place)
        characters += len(texts[place])
    if portion:
        yield portion


def _refuse_wordless(rows: Sequence[EncodedText], ids: Sequence[str]) -> None:
    """A text with no tokens at all has no vector; only a tokenizer that adds no special tokens can make one."""
    for item, row in zip(ids, rows, strict=True):
        if not row.ids:
            raise InvalidRequest(
                f"item {item!r} has no tokens under this model's tokenizer, so it has no vector; leave it out",
                details={"item_id": item},
            )


def _items(params: EmbedBatchParams) -> tuple[list[str], list[str]]:
    given = params.items if params.items is not None else params.texts
    if given is None or (params.items is not None and params.texts is not None):
        raise InvalidRequest("embed.batch takes either items or texts; give exactly one of them", channel=True)
    if not given:
        raise InvalidRequest("embed.batch got an empty list ([]); give at least one item", channel=True)
    pairs = [
        (item.id, item.text) if isinstance(item, EmbedItem) else (str(index), item) for index, item in enumerate(given)
    ]
    seen: set[str] = set()
    for item_id, _ in pairs:
        if item_id in seen:
            raise InvalidRequest(
                f"item id {item_id!r} is given twice; results are keyed by id, so ids must differ",
                details={"item_id": item_id},
            )
        seen.add(item_id)
    return [item_id for item_id, _ in pairs], [text for _, text in pairs]


class _TooMuch(Exception):
    """A batch passes an inline limit; never on the wire."""

    def __init__(self, what: str, number: int, limit: int) -> None:
        super().__init__(what)
        self.what = what
        self.details = {what: number, f"max_{what}": limit}
