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
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Load, Loaded

#: A healthy child of a busy test machine connects and greets well within these seconds.
PATIENCE_S = 30.0


def stub_spec(folder: Path) -> WorkerSpec:
    """The well-behaved stub worker with its socket below ``folder``."""
    return WorkerSpec(
        "stub",
        "synapse-stub-m",
        folder / "w" / "s.sock",
        command=(sys.executable, "-P", "-m", "synapse_host.testing.stub_worker", "stub"),
        accept_deadline_s=PATIENCE_S,
        hello_deadline_s=PATIENCE_S,
    )


def misbehaving_spec(folder: Path, kind: str, *, env: Mapping[str, str] | None = None, **changes: Any) -> WorkerSpec:
    """The worker that breaks the rule ``kind``; ``changes`` replaces fields of its spec."""
    command = (sys.executable, "-P", "-m", "synapse_host.testing.misbehaving_worker", "stub")
    environment = {"SYNAPSE_MISBEHAVIOUR": kind, **(env or {})}
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
    tokens = [token for row in rows for token in row]
    message = EmbedBatchRequest(req_id, model_ref, pooling, True, items)
    raw = struct.pack(f"<{len(tokens)}i", *tokens)
    header, vectors = await worker.request(message, raw, operation="embed", drained=drained)
    assert vectors is not None
    dims = header.to_wire()["dims"]
    values = struct.unpack(f"<{len(vectors) // 4}f", vectors)
    return [list(values[start : start + dims]) for start in range(0, len(values), dims)]


def details_of(error: SynapseError) -> dict[str, Any]:
    """The details of ``error``, which must have some."""
    assert error.details is not None, f"{error!r} carries no details"
    return error.details
