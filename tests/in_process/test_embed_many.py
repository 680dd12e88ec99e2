from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from synapse_host.client.async_client import AsyncClient
from synapse_host.client.blocking_client import Client
from synapse_host.client.bulk import PATIENCE_MS
from synapse_host.errors import InvalidRequest, QueueFull
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.testing.fake_methods import (
    ItemsParams,
    embedding_methods,
    fake_embedding,
    fake_vector,
)
from synapse_host.testing.in_process_host import in_process_host

pytestmark = pytest.mark.anyio
DEADLINE_S = 30


class Splitting:
    """embed.batch with a limit of its own, and a record of what it was asked."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sizes: list[int] = []

    async def __call__(self, params: ItemsParams, context: RequestContext) -> Reply:
        self.sizes.append(len(params.items))
        if len(params.items) > self.limit:
            raise InvalidRequest("too many", details={"items": len(params.items), "max_items": self.limit})
        return fake_embedding([(item["id"], item["text"]) for item in reversed(params.items)])


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AsyncClient]:
    async with (
        in_process_host(tmp_path, embedding_methods()) as running,
        await AsyncClient.connect(running.socket) as client,
    ):
        yield client


async def test_embed_many_keeps_the_order_of_its_texts(client: AsyncClient) -> None:
    texts = [f"{'word ' * (number % 17)}{number}" for number in range(300)]
    progress: list[tuple[int, int]] = []
    reply = await client.embed_many("m", texts, on_progress=lambda *step: progress.append(step), concurrency=4)
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in texts]
    assert reply.real_token_counts == tuple(len(text.split()) for text in texts)
    assert progress[-1] == (300, 300)
    assert [done for done, _ in progress] == sorted({done for done, _ in progress})


async def test_embed_many_halves_what_is_too_large(tmp_path: Path) -> None:
    limited = Splitting(10)
    texts = [f"text {number}" for number in range(100)]
    async with (
        in_process_host(tmp_path, [Method("embed.batch", "query", ItemsParams, limited)]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        reply = await client.embed_many("m", texts)
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in texts]
    assert max(limited.sizes) == 64
    assert sum(size for size in limited.sizes if size <= 10) == 100


class FirstWaitsForThird:
    """embed.batch whose first request is answered only once a third one has come."""

    def __init__(self) -> None:
        self.requests = 0
        self._third = anyio.Event()

    async def __call__(self, params: ItemsParams, context: RequestContext) -> Reply:
        self.requests += 1
        if self.requests == 3:
            self._third.set()
        if self.requests == 1:
            await self._third.wait()
        return fake_embedding([(item["id"], item["text"]) for item in params.items])


async def test_embed_many_sends_on_while_its_first_request_is_unanswered(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(200)]
    with anyio.fail_after(DEADLINE_S):
        async with (
            in_process_host(tmp_path, [Method("embed.batch", "query", ItemsParams, FirstWaitsForThird())]) as host,
            await AsyncClient.connect(host.socket) as client,
        ):
            reply = await client.embed_many("m", texts, concurrency=2)
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in texts]


async def test_a_blocking_embed_many_sends_on_too(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(200)]

    def embed(socket: Path) -> list[list[float]]:
        with Client.connect(socket) as client:
            vectors: list[list[float]] = client.embed_many("m", texts, concurrency=2).vectors.tolist()
            return vectors

    with anyio.fail_after(DEADLINE_S):
        async with in_process_host(
            tmp_path, [Method("embed.batch", "query", ItemsParams, FirstWaitsForThird())]
        ) as host:
            vectors = await anyio.to_thread.run_sync(embed, host.socket, abandon_on_cancel=True)
    assert vectors == [list(fake_vector(text)) for text in texts]


async def test_embed_many_raises_a_refusal_of_one_text(tmp_path: Path) -> None:
    async with (
        in_process_host(tmp_path, [Method("embed.batch", "query", ItemsParams, Splitting(0))]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with pytest.raises(InvalidRequest, match="too many"):
            await client.embed_many("m", ["a", "b", "c"])


async def test_embed_many_retries_only_when_told_to(tmp_path: Path) -> None:
    calls = 0

    async def busy_once(params: ItemsParams, context: RequestContext) -> Reply:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise QueueFull("busy", retry_after_ms=1)
        return fake_embedding([(item["id"], item["text"]) for item in params.items])

    async with (
        in_process_host(tmp_path, [Method("embed.batch", "query", ItemsParams, busy_once)]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        with pytest.raises(QueueFull):
            await client.embed_many("m", ["a"])
        calls = 0
        reply = await client.embed_many("m", ["a"], retries=1)
    assert reply.vectors.tolist() == [list(fake_vector("a"))]


async def test_embed_many_of_nothing_is_refused(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match="0 texts"):
        await client.embed_many("m", [])


async def test_whoever_embeds_many_texts_waits_his_turn_unless_he_says_otherwise(tmp_path: Path) -> None:
    seen: list[tuple[int | None, int | None]] = []

    class Patient(ItemsParams):
        deadline_ms: int | None = None
        max_queue_ms: int | None = None

    async def note(params: Patient, context: RequestContext) -> Reply:
        seen.append((params.deadline_ms, params.max_queue_ms))
        return fake_embedding([(item["id"], item["text"]) for item in params.items])

    async with (
        in_process_host(tmp_path, [Method("embed.batch", "query", Patient, note)]) as host,
        await AsyncClient.connect(host.socket) as client,
    ):
        await client.embed_many("m", ["a"])
        await client.embed_many("m", ["a"], deadline_ms=700)
        await client.embed_many("m", ["a"], deadline_ms=700, max_queue_ms=5)
    assert seen == [(PATIENCE_MS, PATIENCE_MS), (700, 700), (700, 5)]
