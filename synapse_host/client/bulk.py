"""The many requests behind one ``embed_many``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from synapse_host.client.batching import Batch, is_too_large
from synapse_host.client.exchange import Received
from synapse_host.client.params import batch_params
from synapse_host.client.replies import EmbedReply, read_embed_reply
from synapse_host.client.transport import Transport, may_wait, unlike
from synapse_host.errors import InvalidRequest, ModelLoading, SynapseError

#: How long a batch of many may take, and wait, where the caller does not say: whoever embeds many texts is patient.
PATIENCE_MS = 600_000

#: Called with texts done and texts in all.
OnProgress = Callable[[int, int], None]


class BulkRequests:
    """The requests of one ``embed_many``: so many in flight, in whatever order they are answered."""

    def __init__(
        self,
        transport: Transport,
        model: str | None,
        texts: Sequence[str],
        constraints: Mapping[str, Any],
        batches: Sequence[Batch],
        retries: int,
    ) -> None:
        self._transport = transport
        self._model = model
        self._texts = texts
        deadline_ms = constraints.get("deadline_ms", PATIENCE_MS)
        self._patience_s = deadline_ms / 1000
        self._constraints = {"deadline_ms": deadline_ms, "max_queue_ms": deadline_ms, **constraints}
        self._planned = deque((batch, retries) for batch in batches)
        self._sent: dict[int, tuple[Batch, int]] = {}
        self._before: SynapseError | None = None
        self._patient_until = 0.0

    async def run(self, concurrency: int, on_progress: OnProgress | None) -> list[tuple[Sequence[int], EmbedReply]]:
        """Each reply with the places of its rows in the whole."""
        self._patient_until = monotonic() + self._patience_s
        parts: list[tuple[Sequence[int], EmbedReply]] = []
        done = 0
        while self._planned or self._sent:
            await self._fill(concurrency)
            answer = await self._receive()
            if answer is None:
                continue
            # The next request goes out before this answer is read: the host must not wait for the reading.
            await self._fill(concurrency)
            batch, received = answer
            parts.append((batch.places, read_embed_reply("embed.batch", received, *self._items(batch))))
            done += len(batch.places)
            if on_progress is not None:
                on_progress(done, len(self._texts))
        return parts

    def abandon(self) -> None:
        """Give up what is still in flight."""
        for number in self._sent:
            self._transport.forget(number)
        self._sent.clear()

    async def _fill(self, concurrency: int) -> None:
        while self._planned and len(self._sent) < concurrency:
            batch, retries = self._planned.popleft()
            params = batch_params(self._model, *self._items(batch), self._constraints)
            self._sent[await self._transport.submit("embed.batch", params, None)] = batch, retries

    async def _receive(self) -> tuple[Batch, Received] | None:
        """The first answer to come; None where it was a refusal and the work is planned anew."""
        number = await self._transport.answered(self._sent)
        batch, retries = self._sent.pop(number)
        try:
            return batch, await self._transport.result(number)
        except SynapseError as refusal:
            await self._answer_refusal(refusal, batch, retries)
            return None

    async def _answer_refusal(self, refusal: SynapseError, batch: Batch, retries: int) -> None:
        if isinstance(refusal, InvalidRequest) and is_too_large(refusal) and len(batch.places) > 1:
            self._planned.extendleft((half, retries) for half in reversed(batch.halves()))
        elif isinstance(refusal, ModelLoading) and monotonic() < self._patient_until:
            # The host waits five seconds for a model at most, and a bulk request was given longer than that.
            await self._transport.pause((refusal.retry_after_ms or 0) / 1000)
            self._planned.appendleft((batch, retries))
        elif retries > 0 and may_wait(refusal):
            self._before = refusal
            await self._transport.pause((refusal.retry_after_ms or 0) / 1000)
            self._planned.appendleft((batch, retries - 1))
        else:
            raise refusal from unlike(self._before, refusal)

    def _items(self, batch: Batch) -> tuple[list[str], list[str]]:
        return [str(place) for place in batch.places], [self._texts[place] for place in batch.places]
