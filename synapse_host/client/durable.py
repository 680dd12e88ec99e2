"""Work of any size through durable jobs: some handed in ahead, read in order while the host computes the next ones.

Nothing is kept but the parts in progress, so that a million texts take no more memory than some thousands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from synapse_host.client.exchange import Received, error_from
from synapse_host.client.faults import JobCancelled, ReplyMismatch
from synapse_host.client.job_parts import JobPart
from synapse_host.client.job_rows import JobRows
from synapse_host.client.params import batch_params
from synapse_host.client.replies import EmbedReply, read_embed_reply
from synapse_host.client.transport import may_retry
from synapse_host.errors import DeadlineExceeded, SynapseError

#: The code of the error that a pause of the lane is.
LANE_PAUSED = "lane_paused"
#: Parts handed in before the first of them is read: the host must not wait for the next.
AHEAD = 4
_FIRST_POLL_S = 0.01
_LONGEST_POLL_S = 0.5
_POLL_GROWTH = 1.5
#: How often a client looks whether a pause of its lane is over: an operator may end it long before its time.
_PAUSE_LOOK_S = 2.0


class Ask(Protocol):
    """Sends a request and waits for its answer; may send it again where that is safe."""

    def __call__(self, method: str, params: Mapping[str, Any], flow_id: None, retries: int) -> Awaitable[Received]:
        """The answer; raises what the host refused with."""
        ...


@dataclass(slots=True)
class _Handed:
    """A part that was handed in: its answer where that came at once, else what is read of its job.

    ``found`` counts the rows of its job that were there already and are still to be read.
    """

    part: JobPart
    rows: JobRows
    inline: EmbedReply | None = None
    job_id: str = ""
    found: int = 0


class DurableWork:
    """The jobs of one ``request_key``. ``on_rows`` is told of rows as they are read.

    ``on_found`` is told before that how many of them an earlier run had left. ``on_wait`` is given the error, once for
    each part, that keeps the host from going on with it: what a job waits for, or the pause of its lane.
    """

    def __init__(
        self,
        ask: Ask,
        pause: Callable[[float], Awaitable[None]],
        model: str | None,
        request_key: str,
        constraints: Mapping[str, Any],
        retries: int,
        on_rows: Callable[[int], None] | None = None,
        on_found: Callable[[int], None] | None = None,
        on_wait: Callable[[Exception], None] | None = None,
    ) -> None:
        self._ask = ask
        self._pause = pause
        self._model = model
        self._request_key = request_key
        self._constraints = constraints
        self._retries = retries
        self._on_rows = on_rows or (lambda count: None)
        self._on_found = on_found or (lambda count: None)
        self._on_wait = on_wait or (lambda error: None)
        self._told: tuple[str, type[Exception]] | None = None

    async def replies(self, parts: Iterable[JobPart], ahead: int = AHEAD) -> AsyncGenerator[EmbedReply, None]:
        """The answer to each part, in their order.

        Raises:
            SynapseError: what a job failed with, once it was handed in again as often as it may be.
            JobCancelled: somebody ended one of the jobs; those handed in behind it are then ended too.
            ReplyMismatch: the fingerprint changed on the way, or an answer does not fit its part.

        """
        handed: deque[_Handed] = deque()
        fingerprint: str | None = None
        try:
            for part in parts:
                handed.append(await self._hand_in(part))
                if len(handed) > ahead:
                    reply = await self._collected(handed.popleft())
                    fingerprint = _same(fingerprint, reply)
                    yield reply
            while handed:
                reply = await self._collected(handed.popleft())
                fingerprint = _same(fingerprint, reply)
                yield reply
        except JobCancelled:
            await self._cancel(handed)
            raise

    async def _cancel(self, handed: Iterable[_Handed]) -> None:
        """End the jobs that wait behind one that somebody ended: parts are one work, and nobody would collect them."""
        for behind in handed:
            if behind.job_id:
                await self._ask("job.cancel", {"job_id": behind.job_id}, None, self._retries)

    async def _hand_in(self, part: JobPart) -> _Handed:
        handed = _Handed(part, JobRows(part))
        await self._submit(handed)
        return handed

    async def _submit(self, handed: _Handed) -> None:
        part = handed.part
        params = batch_params(self._model, part.ids, part.texts, self._constraints)
        params["request_key"] = part.key(self._request_key)
        received = await self._handed_in(params)
        if "job_id" not in received.payload:
            handed.inline = read_embed_reply("embed.batch", received, part.ids, part.texts)
            return
        handed.job_id = received.payload["job_id"]
        handed.found = received.payload.get("items_done", 0)

    async def _handed_in(self, params: Mapping[str, Any]) -> Received:
        retries = self._retries
        while True:
            try:
                return await self._ask("embed.batch", params, None, 0)
            except SynapseError as refusal:
                if retries <= 0 or not may_retry(refusal):
                    raise
                retries -= 1
                await self._wait_out(params["request_key"], refusal)

    async def _wait_out(self, key: str, refusal: Exception) -> None:
        """Wait until trying again may help: as long as the host says, but no longer than a pause lasts."""
        left_s = (getattr(refusal, "retry_after_ms", None) or 0) / 1000
        if getattr(refusal, "code", None) != LANE_PAUSED:
            await self._pause(left_s)
            return
        self._tell(key, refusal)
        while left_s > 0:
            await self._pause(min(left_s, _PAUSE_LOOK_S))
            left_s -= _PAUSE_LOOK_S
            if (await self._ask("lanes.status", {}, None, 0)).payload["phase"] == "running":
                return

    async def _collected(self, handed: _Handed) -> EmbedReply:
        delay, retries = _FIRST_POLL_S, self._retries
        while handed.inline is None:
            params = {"job_id": handed.job_id}
            if handed.rows.cursor is not None:
                params["cursor"] = handed.rows.cursor
            received = await self._ask("embed.result", params, None, self._retries)
            count = handed.rows.take(received)
            if found := min(count, handed.found):
                handed.found -= found
                self._on_found(found)
            self._on_rows(count)
            if "waiting_for" in received.payload:
                self._stands_still(handed, received.payload["waiting_for"])
            if handed.rows.cursor is None:
                if received.payload["state"] == "done":
                    return handed.rows.reply()
                if received.payload["state"] == "cancelled":
                    raise JobCancelled(handed.job_id)
                await self._hand_in_again(handed, received.payload, retries)
                retries -= 1
            delay = _FIRST_POLL_S if count else min(delay * _POLL_GROWTH, _LONGEST_POLL_S)
            if not count:
                await self._pause(delay)
        self._on_rows(len(handed.part.ids))
        return handed.inline

    def _stands_still(self, handed: _Handed, told: Mapping[str, Any]) -> None:
        if (told.get("details") or {}).get("ends_as") == "cancelled":
            raise JobCancelled(handed.job_id)
        self._tell(handed.part.key(self._request_key), error_from(told))

    def _tell(self, key: str, error: Exception) -> None:
        if self._told != (key, type(error)):
            self._told = key, type(error)
            self._on_wait(error)

    async def _hand_in_again(self, handed: _Handed, status: Mapping[str, Any], retries: int) -> None:
        """Go on with a job that failed for now: its key still names what it committed."""
        error = error_from(status.get("error") or {})
        if status["state"] != "failed_transient" or retries <= 0 or _is_final(error):
            raise error
        await self._wait_out(handed.part.key(self._request_key), error)
        self._on_rows(-len(handed.rows))
        handed.rows.begin()
        await self._submit(handed)


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end the same way: out of time, or an item that killed the engine twice."""
    details = error.details if isinstance(error, SynapseError) else None
    return isinstance(error, DeadlineExceeded) or "item_id" in (details or {})


def _same(fingerprint: str | None, reply: EmbedReply) -> str:
    if fingerprint is not None and fingerprint != reply.fingerprint:
        raise ReplyMismatch(
            f"the fingerprint changed on the way, from {fingerprint} to {reply.fingerprint}; embed again"
        )
    return reply.fingerprint
