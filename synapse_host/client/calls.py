"""The client's methods, written once over a transport that either awaits or blocks.

Transient refusals are raised, not retried, unless the caller passes ``retries``; then only those that are safe to send
again are, after ``retry_after_ms``, where that is a minute at most.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from synapse_host.client.batching import plan_batches
from synapse_host.client.bulk import BulkRequests, OnProgress
from synapse_host.client.durable import DurableWork
from synapse_host.client.exchange import Received, error_from
from synapse_host.client.faults import ReplyMismatch
from synapse_host.client.generate_reply import GenerateReply, read_generate_reply
from synapse_host.client.job_parts import JobPart, job_parts
from synapse_host.client.params import batch_params, given, with_model
from synapse_host.client.replies import EmbedReply, merge_replies, payload_with_vectors, read_embed_reply
from synapse_host.client.rerank_reply import RerankReply, read_rerank_reply
from synapse_host.client.transport import Transport, may_wait, unlike
from synapse_host.errors import SynapseError

Status = dict[str, Any]
OnStatus = Callable[[Status], None]
OnRows = Callable[[int], None]
OnWait = Callable[[Exception], None]
#: An item of a batch: a text (its place becomes its id) or an id with its text.
Item = str | tuple[str, str]

_FIRST_POLL_S = 0.01
_LONGEST_POLL_S = 0.5
_POLL_GROWTH = 1.5


class Calls:
    """Every method of the host this library knows, over one transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        flow_id: str | None = None,
        retries: int = 0,
    ) -> dict[str, Any]:
        """Call any method by name; the result as the host sent it, vectors as float32 rows.

        Raises:
            SynapseError: the host's refusal, one type per code.
            ConnectionLost: the connection ended first.

        """
        return payload_with_vectors(await self._ask(method, params or {}, flow_id, retries))

    async def embed_query(
        self, model: str | None, text: str, *, flow_id: str | None = None, retries: int = 0, **constraints: Any
    ) -> EmbedReply:
        """Embed one text. ``constraints`` are the request fields of contract section 3, ``deadline_ms`` among them."""
        params = {"text": text, **with_model(model, constraints)}
        received = await self._ask("embed.query", params, flow_id, retries)
        return read_embed_reply("embed.query", received, [constraints.get("id", "query")], [text])

    async def embed_batch(
        self,
        model: str | None,
        items: Sequence[Item],
        *,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> EmbedReply:
        """Embed several texts in one request; the reply is in the order of ``items``."""
        pairs = [(str(place), item) if isinstance(item, str) else item for place, item in enumerate(items)]
        ids, texts = [item for item, _ in pairs], [text for _, text in pairs]
        received = await self._ask("embed.batch", batch_params(model, ids, texts, constraints), flow_id, retries)
        return read_embed_reply("embed.batch", received, ids, texts)

    async def embed_many(
        self,
        model: str | None,
        texts: Sequence[str],
        *,
        on_progress: OnProgress | None = None,
        concurrency: int = 2,
        retries: int = 0,
        request_key: str | None = None,
        on_wait: OnWait | None = None,
        **constraints: Any,
    ) -> EmbedReply:
        """Embed any number of texts in requests of like length, ``concurrency`` of them in flight.

        The reply is in the order of ``texts``; ids are their places. ``on_progress(done, total)`` counts texts. A model
        that still loads is waited for, as long as ``deadline_ms`` says: ten minutes where it is not given.
        With a ``request_key`` the work is done by durable jobs instead: called again with the same key and texts after
        a crash, a restart or an interrupt, it goes on with what is left. ``on_wait`` is then given the error that keeps
        the host from going on, as a full disk or a pause of the model's lane, once for each job.

        Raises:
            ValueError: ``texts`` is empty, or ``concurrency`` is less than one.
            SynapseError: the first refusal that is neither retried nor met by a smaller request.

        """
        if isinstance(texts, str):
            raise TypeError("embed_many got one string and would embed its characters; pass a list, or use embed_query")
        if not texts or concurrency < 1:
            raise ValueError(
                f"embed_many got {len(texts)} texts and concurrency {concurrency}; give at least one of each"
            )
        if request_key is not None:
            return await self._embed_durably(model, texts, request_key, on_progress, on_wait, retries, constraints)
        batches = plan_batches(texts, row_ceiling=await self._row_ceiling(model))
        work = BulkRequests(self._transport, model, texts, constraints, batches, retries)
        try:
            parts = await work.run(concurrency, on_progress)
        finally:
            work.abandon()
        return merge_replies(parts, [str(place) for place in range(len(texts))])

    async def embed_jobs(
        self,
        model: str | None,
        parts: Iterable[JobPart],
        *,
        request_key: str,
        on_rows: OnRows | None = None,
        on_found: OnRows | None = None,
        on_wait: OnWait | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> AsyncGenerator[EmbedReply, None]:
        """The answer to each of ``parts``, in their order, by durable jobs; holds no more than a few of them.

        ``on_rows`` is told how many rows were read; fewer than none when a job that failed is read from its beginning
        again. ``on_found`` is told before that how many of them the job had when it was handed in. ``on_wait`` is given
        the error that keeps the host from going on, as a full disk, once for each job. A job that failed for now is
        handed in again ``retries`` times.
        """
        work = DurableWork(
            self._ask,
            self._transport.pause,
            model,
            request_key,
            constraints,
            retries,
            on_rows,
            on_found=on_found,
            on_wait=on_wait,
        )
        async for reply in work.replies(parts):
            yield reply

    async def job_status(self, job_id: str) -> Status:
        """The status of an embed job."""
        return await self.call("model.status", {"job_id": job_id})

    async def job_page(self, job_id: str, *, cursor: str | None = None, max_page_bytes: int | None = None) -> Status:
        """Committed rows of an embed job from ``cursor`` on; ``next_cursor`` of the answer is where to go on."""
        return await self.call("embed.result", given(job_id=job_id, cursor=cursor, max_page_bytes=max_page_bytes))

    async def job_resume(self, job_id: str) -> Status:
        """Go on with a job that waits for a login; any other stays as it is."""
        return await self.call("job.resume", {"job_id": job_id})

    async def job_cancel(self, job_id: str | None = None, *, request_key: str | None = None) -> Status:
        """End a job that is wanted no more, or all open jobs of a ``request_key``; what they committed is kept.

        The status of the job, or under ``jobs`` that of each that was open.
        """
        return await self.call("job.cancel", given(job_id=job_id, request_key=request_key))

    async def wait_for_job(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll an embed job until it is done or cancelled; raises its error when it failed."""
        return await self._poll("model.status", job_id, ("done", "cancelled"), on_state)

    async def _embed_durably(
        self,
        model: str | None,
        texts: Sequence[str],
        request_key: str,
        on_progress: OnProgress | None,
        on_wait: OnWait | None,
        retries: int,
        constraints: Mapping[str, Any],
    ) -> EmbedReply:
        done = 0

        def count(rows: int) -> None:
            nonlocal done
            done += rows
            if on_progress is not None:
                on_progress(done, len(texts))

        parts = job_parts((str(place), text) for place, text in enumerate(texts))
        replies = self.embed_jobs(
            model, parts, request_key=request_key, on_rows=count, on_wait=on_wait, retries=retries, **constraints
        )
        places = [(list(map(int, reply.ids)), reply) async for reply in replies]
        return merge_replies(places, [str(place) for place in range(len(texts))])

    async def rerank(
        self,
        model: str | None,
        query: str,
        documents: Sequence[str],
        *,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> RerankReply:
        """Score ``documents`` against ``query`` in one request; scores are raw and in the order of ``documents``.

        Raises:
            ValueError: ``documents`` is empty.
            TypeError: it is one string.

        """
        if isinstance(documents, str):
            raise TypeError("rerank got one string and would score its characters; pass a list of documents")
        if not documents:
            raise ValueError("rerank got no documents; give at least one")
        params = {"query": query, "candidates": list(documents), **with_model(model, constraints)}
        return read_rerank_reply(await self._ask("rerank.score", params, flow_id, retries), len(documents))

    async def generate(
        self,
        model: str,
        prompt: str,
        *,
        max_tokens: int,
        grammar: str | None = None,
        flow_id: str | None = None,
        retries: int = 0,
        **constraints: Any,
    ) -> GenerateReply:
        """Generate at most ``max_tokens`` tokens after ``prompt``, greedily. ``grammar`` is refused unless obeyed."""
        params = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            **given(grammar=grammar),
            **with_model(model, constraints),
        }
        return read_generate_reply(await self._ask("microllm.oneshot", params, flow_id, retries))

    async def model_load(self, **params: Any) -> Status:
        """Start loading a model; the reply names the ``job_id`` for ``wait_for_load``."""
        return await self.call("model.load", params)

    async def model_status(self, *, job_id: str | None = None, model_id: str | None = None) -> Status:
        """The state of a load job or of a model; give exactly one of the two."""
        return await self.call("model.status", given(job_id=job_id, model_id=model_id))

    async def model_unload(self, model_id: str) -> Status:
        """Stop a model's worker; the model stays registered."""
        return await self.call("model.unload", {"model_id": model_id})

    async def models_list(self) -> dict[str, Any]:
        """Every model with its state, fingerprints and limits."""
        return await self.call("models.list")

    async def models_catalog(
        self,
        *,
        query: str | None = None,
        task: str | None = None,
        runnable_here: bool | None = None,
        installed: bool | None = None,
    ) -> Status:
        """The models of the catalog that pass every filter given."""
        filters = given(query=query, task=task, runnable_here=runnable_here, installed=installed)
        return await self.call("models.catalog", filters)

    async def models_download(self, catalog_id: str, *, request_key: str | None = None) -> Status:
        """Start or join installing a model of the catalog; the reply names the ``job_id`` for ``wait_for_download``."""
        return await self.call("models.download", {"catalog_id": catalog_id, **given(request_key=request_key)})

    async def models_download_cancel(self, job_id: str) -> Status:
        """End a download for everybody who waits for it, unless it has ended."""
        return await self.call("models.download.cancel", {"job_id": job_id})

    async def models_remove(self, catalog_id: str) -> dict[str, Any]:
        """Remove every install of a model of the catalog."""
        return await self.call("models.remove", {"catalog_id": catalog_id})

    async def probe_start(self, models: Sequence[str], *, request_key: str | None = None) -> Status:
        """Start certifying models on this machine; the reply names the ``job_id`` for ``wait_for_probe``."""
        return await self.call("probe.start", {"models": list(models), **given(request_key=request_key)})

    async def probe_report(self) -> dict[str, Any]:
        """What was measured on this machine."""
        return await self.call("probe.report")

    async def wait_for_load(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a load job until its model is ready; raises the job's error when it failed."""
        return await self._poll("model.status", job_id, ("ready",), on_state)

    async def wait_for_download(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a download until it is committed or cancelled; raises the job's error when it failed."""
        return await self._poll("model.status", job_id, ("committed", "cancelled"), on_state)

    async def wait_for_probe(self, job_id: str, *, on_state: OnStatus | None = None) -> Status:
        """Poll a probe job until it is done; raises the job's error when it failed."""
        return await self._poll("probe.status", job_id, ("done",), on_state)

    async def _poll(self, method: str, job_id: str, ends: Collection[str], on_state: OnStatus | None) -> Status:
        delay, before = _FIRST_POLL_S, None
        while True:
            status = await self.call(method, {"job_id": job_id})
            if on_state is not None and status != before:
                on_state(status)
            before = status
            state = str(status.get("state"))
            if state in ends:
                return status
            if "error" in status:
                raise error_from(status["error"])
            if state.startswith("failed"):
                raise ReplyMismatch(f"job {job_id!r} ended as {state!r} without saying why; read the host's log")
            await self._transport.pause(delay)
            delay = min(delay * _POLL_GROWTH, _LONGEST_POLL_S)

    async def _ask(self, method: str, params: Mapping[str, Any], flow_id: str | None, retries: int) -> Received:
        before: SynapseError | None = None
        while True:
            number = await self._transport.submit(method, params, flow_id)
            try:
                return await self._transport.result(number)
            except SynapseError as refusal:
                if retries <= 0 or not may_wait(refusal):
                    raise refusal from unlike(before, refusal)
                before = refusal
                await self._transport.pause((refusal.retry_after_ms or 0) / 1000)
            retries -= 1

    async def _row_ceiling(self, model: str | None) -> int | None:
        """The most tokens the model embeds of one text, for planning; None where the host does not say."""
        try:
            rows = (await self.models_list()).get("models", ())
        except SynapseError:
            return None
        found = [row.get("max_tokens") for row in rows if row.get("model_id") == model]
        return found[0] if found else None
