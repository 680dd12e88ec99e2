"""Handlers for tests of the socket: an echo, one that waits to be let go, one that fails, and one that embeds.

The embedding is a digest of the text: cheap, and different for different texts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import anyio
from pydantic import BaseModel, ConfigDict

from synapse_host.errors import SynapseError
from synapse_host.operations.registry import Method, RawVectors, Reply, RequestContext

DIMS = 8
FINGERPRINT = "f" * 64


class AnyParams(BaseModel):
    """Takes a value of any kind."""

    model_config = ConfigDict(extra="forbid")
    value: Any = None


class TextParams(BaseModel):
    """Takes one text."""

    model_config = ConfigDict(extra="ignore")
    text: str
    id: str = "query"


class ItemsParams(BaseModel):
    """Takes items of ``{id, text}``."""

    model_config = ConfigDict(extra="ignore")
    items: list[dict[str, str]]


def fake_vector(text: str) -> tuple[float, ...]:
    """The f32 values the fakes answer for a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return tuple(byte / 256 for byte in digest[:DIMS])


def fake_embedding(pairs: Sequence[tuple[str, str]]) -> Reply:
    """A complete inference reply for ``(id, text)`` pairs."""
    data = b"".join(struct.pack(f"<{DIMS}f", *fake_vector(text)) for _, text in pairs)
    payload = {
        "fingerprint": FINGERPRINT,
        "table_epoch": 3,
        "dims": DIMS,
        "provenance": {"engine": {"engine": "fake", "version": "1", "build_flags": {}}},
        "module_generation": 7,
        "equivalent_to": [],
        "vectors": [_item(item, text) for item, text in pairs],
        "real_token_counts": [len(text.split()) for _, text in pairs],
        "truncation_disclosures": [_disclosure(text) for _, text in pairs],
    }
    return Reply(payload, RawVectors(len(pairs), DIMS, data))


def _item(item: str, text: str) -> dict[str, str]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"id": item, "content_sha256": digest, "submitted_sha256": digest}


def _disclosure(text: str) -> dict[str, Any]:
    tokens = len(text.split())
    return {"submitted_tokens": tokens, "effective_tokens": tokens, "truncated": False}


class Gate:
    """A handler that waits until the test opens it, and counts who came."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.entered = 0
        self.cancelled = 0
        self.came = anyio.Event()

    async def __call__(self, params: AnyParams, context: RequestContext) -> Reply:
        """Wait to be let go."""
        self.entered += 1
        self.came.set()
        try:
            await self.open.wait()
        except BaseException:
            self.cancelled += 1
            raise
        return Reply({"value": params.value})


def echo_method(name: str = "fake.echo") -> Method:
    """Answers with its ``value``, the flow and the peer's user."""

    async def echo(params: AnyParams, context: RequestContext) -> Reply:
        return Reply({"value": params.value, "flow_id": context.flow_id, "peer_uid": context.peer_uid})

    return Method(name, "query", AnyParams, echo)


def gate_method(gate: Gate) -> Method:
    """Answers when ``gate`` is opened."""
    return Method("fake.gate", "query", AnyParams, gate)


def failing_method(error: Exception, name: str = "fake.fail") -> Method:
    """Raises ``error``: a refusal or a fault."""

    async def fail(params: AnyParams, context: RequestContext) -> Reply:
        raise error

    return Method(name, "query", AnyParams, fail)


def refusing_first(count: int, refusal: SynapseError, name: str = "fake.flaky") -> Method:
    """Refuses ``count`` times, then answers how often it was called."""
    calls = 0

    async def flaky(params: AnyParams, context: RequestContext) -> Reply:
        nonlocal calls
        calls += 1
        if calls <= count:
            raise refusal
        return Reply({"calls": calls})

    return Method(name, "query", AnyParams, flaky)


async def _query(params: TextParams, context: RequestContext) -> Reply:
    return fake_embedding([(params.id, params.text)])


async def _batch(params: ItemsParams, context: RequestContext) -> Reply:
    return fake_embedding([(item["id"], item["text"]) for item in params.items])


def embedding_methods() -> list[Method]:
    """embed.query and embed.batch, answered by digests."""
    return [Method("embed.query", "query", TextParams, _query), Method("embed.batch", "query", ItemsParams, _batch)]
