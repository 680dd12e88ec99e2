"""Starts workers for tests: the stub, the misbehaving one, or a real one; and speaks to them in token ids.

Needs no test framework: what is wrong is an ``AssertionError``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from synapse_host.errors import SynapseError
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.process_watch import wait_until_gone
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Generate,
    Load,
    Loaded,
    Rerank,
    RerankSequences,
    Text,
)

#: A healthy child of a busy test machine connects and greets well within these seconds.
PATIENCE_S = 30.0


def stub_spec(folder: Path) -> WorkerSpec:
    """The well-behaved stub worker with its socket below ``folder``."""
    return WorkerSpec(
        "stub",
        "synapse-stub-m",
        folder / "w" / "s.sock",
        command=(sys.executable, "-P", "-m", "synapse_host.testing.workers.stub_worker", "stub"),
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
    )


def misbehaving_spec(
    folder: Path, kind: str, *, on: str = "EMBED_BATCH", env: Mapping[str, str] | None = None, **changes: Any
) -> WorkerSpec:
    """The worker that breaks the rule ``kind`` in requests of type ``on``; ``changes`` replaces fields of its spec."""
    command = (sys.executable, "-P", "-m", "synapse_host.testing.workers.misbehaving_worker", "stub")
    environment = {"SYNAPSE_MISBEHAVIOUR": kind, "SYNAPSE_MISBEHAVE_ON": on, **(env or {})}
    return replace(stub_spec(folder), command=command, extra_env=environment, **changes)


@asynccontextmanager
async def running(spec: WorkerSpec) -> AsyncIterator[Worker]:
    """A started worker that is stopped at the end; it may leave neither a process nor a socket behind."""
    async with anyio.create_task_group() as tasks:
        worker = await Worker.start(spec, tasks)
        try:
            yield worker
        finally:
            await worker.stop(drain_s=PATIENCE_S)
            assert wait_until_gone(worker.pid), f"worker {worker.pid} outlived its end"
            assert not spec.socket_path.exists(), f"{spec.socket_path} was left behind"


async def load(worker: Worker, **runtime_config: str) -> str:
    """Load into a stub worker; returns the model reference."""
    reply, _ = await worker.request(Load("load-1", "/m", "d", "f", runtime_config), operation="load")
    assert isinstance(reply, Loaded)
    return reply.model_ref


async def embed(
    worker: Worker,
    model_ref: str,
    *rows: Sequence[int],
    req_id: str = "embed-1",
    pooling: str = "mean",
    drained: Callable[[], None] | None = None,
) -> list[list[float]]:
    """The vectors of ``rows`` of token ids; the items are called ``0``, ``1`` and so on."""
    items = [{"id": str(place), "n_tokens": len(row)} for place, row in enumerate(rows)]
    message = EmbedBatchRequest(req_id, model_ref, pooling, True, items)
    header, vectors = await worker.request(message, packed_ids(*rows), drained=drained)
    dims = header.to_wire()["dims"]
    values = unpacked_floats(vectors)
    return [values[start : start + dims] for start in range(0, len(values), dims)]


async def rerank(worker: Worker, model_ref: str, query: Sequence[int], *documents: Sequence[int]) -> list[float]:
    """The scores of ``documents``; the worker composes the pairs."""
    counts = [{"n_tokens": len(document)} for document in documents]
    message = Rerank("rerank-1", model_ref, len(query), counts)
    _, scores = await worker.request(message, packed_ids(query, *documents))
    return unpacked_floats(scores)


async def rerank_sequences(worker: Worker, model_ref: str, *sequences: Sequence[int]) -> list[float]:
    """The scores of composed sequences."""
    message = RerankSequences("rerank-1", model_ref, [{"n_tokens": len(sequence)} for sequence in sequences])
    _, scores = await worker.request(message, packed_ids(*sequences))
    return unpacked_floats(scores)


async def generate(
    worker: Worker, model_ref: str, prompt: Sequence[int], max_tokens: int, grammar: str | None = None
) -> Text:
    """What the worker generates after ``prompt``."""
    message = Generate("generate-1", model_ref, max_tokens, grammar)
    reply, _ = await worker.request(message, packed_ids(prompt))
    assert isinstance(reply, Text)
    return reply


def packed_ids(*rows: Sequence[int]) -> bytes:
    """The raw frame of ``rows`` of token ids."""
    tokens = [token for row in rows for token in row]
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpacked_floats(raw: bytes | bytearray | None) -> list[float]:
    """The numbers of a raw frame, which must be there."""
    assert raw is not None, "the reply has no raw frame"
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def details_of(error: SynapseError) -> dict[str, Any]:
    """The details of ``error``, which must have some."""
    assert error.details is not None, f"{error!r} carries no details"
    return error.details
