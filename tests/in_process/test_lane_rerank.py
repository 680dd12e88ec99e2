"""How a lane brings composed pairs to its worker: in groups, put back in order, refusals named by the caller's id."""

from __future__ import annotations

import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.hookspecs import BatchPolicy
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.testing.workers.stub_lane import stub_model
from synapse_host.worker_protocol.item_refusal import refusal_text
from synapse_host.worker_protocol.messages import Loaded, Message, RerankSequences, Scores

pytestmark = pytest.mark.anyio


@dataclass
class ScoringWorker:
    """Scores a row by its first token over 8; refuses a group with token 99 in it, naming the row by its place."""

    groups: list[list[list[int]]] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)
    alive = True
    pid = 1

    async def request(self, message: Message, raw: bytes | None = None, **_: Any) -> tuple[Message, None]:
        return Loaded(message.to_wire()["req_id"], "m1", 0, 1, None), None

    def exchange(self, message: Message, raw: bytes, *, drained: Callable[[], None]) -> Exchange:
        return Exchange(message, raw, drained, 0)

    def submit(self, exchange: Exchange) -> None:
        message = cast("RerankSequences", exchange.message)
        tokens = iter(struct.unpack(f"<{len(exchange.raw or b'') // 4}i", exchange.raw or b""))
        rows = [[next(tokens) for _ in range(entry["n_tokens"])] for entry in message.sequences]
        self.groups.append(rows)
        for place, row in enumerate(rows):
            if row[0] == 99:
                exchange.fail(WorkerRefusal("non_finite_output", refusal_text(str(place), "its score is NaN")))
                return
            if row[0] == 98:
                exchange.fail(WorkerRefusal("invalid_request", refusal_text(str(place), "too long")))
                return
        scores = struct.pack(f"<{len(rows)}f", *(row[0] / 8 for row in rows))
        exchange.finish((Scores(message.req_id), scores))

    async def stop(self, **_: Any) -> None:
        self.closed.set()


@asynccontextmanager
async def reranking() -> AsyncIterator[tuple[Lane, ScoringWorker]]:
    worker = ScoringWorker()

    async def start(model: RegisteredModel) -> Any:
        return worker

    async def no_tokenizer(model: RegisteredModel) -> Any:
        return None

    model = replace(stub_model(), batch=BatchPolicy(3, 100))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            lane = Lane(model, LaneRuntime(start, no_tokenizer, DeviceTurns(), tasks, time.monotonic))
            await lane.load()
            yield lane, worker
            tasks.cancel_scope.cancel()


async def scores(lane: Lane, *rows: list[int]) -> list[float]:
    data = await lane.rerank(rows, [f"candidate-{place}" for place in range(len(rows))])
    return [*struct.unpack(f"<{len(rows)}f", data)]


async def test_scores_of_several_groups_are_put_back_in_order() -> None:
    rows = [[first] * length for first, length in [(8, 5), (16, 1), (24, 9), (32, 2), (40, 7), (48, 1), (56, 3)]]
    async with reranking() as (lane, worker):
        assert await scores(lane, *rows) == [1, 2, 3, 4, 5, 6, 7]
        assert [len(group) for group in worker.groups] == [3, 3, 1]
        assert [len(row) for group in worker.groups for row in group] == [1, 1, 2, 3, 5, 7, 9]
        assert lane.rows_computed == 7
        assert await scores(lane, [8]) == [1]
        assert lane.rows_computed == 8


@pytest.mark.parametrize(("token", "error"), [(99, EngineCrashed), (98, InvalidRequest)])
async def test_a_refusal_names_the_candidate_by_the_caller_s_id(token: int, error: type[Exception]) -> None:
    rows = [[8] * 4, [8] * 3, [token] * 9, [8] * 8, [8] * 7]
    async with reranking() as (lane, _):
        with pytest.raises(error) as refused:
            await scores(lane, *rows)
        details = refused.value.details  # type: ignore[attr-defined]
        assert details["item_id"] == "candidate-2"
        assert lane.strikes.count == 0
