"""How a lane brings the groups of a request to its worker: in turn, ready to send, whatever becomes of the caller."""

from __future__ import annotations

import dataclasses
import json
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Loaded, Message, VectorsHeader

pytestmark = pytest.mark.anyio
DEADLINE_S = 30


@dataclass
class HeldWorker:
    """Answers a group when the test says so: each row's vector is its first token id."""

    fault: Any = None
    dead: bool = False
    pid: int = 1
    begun: list[Exchange] = field(default_factory=list)
    abandoned: list[Exchange] = field(default_factory=list)
    closed: anyio.Event = field(default_factory=anyio.Event)

    async def request(self, message: Message, raw: bytes | None = None, **_: Any) -> tuple[Message, None]:
        return Loaded(message.to_wire()["req_id"], "m1", 1, 1, None), None

    def exchange(self, message: Message, raw: bytes, *, drained: Callable[[], None]) -> Exchange:
        return Exchange(message, raw, drained, 1)

    def submit(self, exchange: Exchange) -> None:
        if self.dead:
            exchange.fail(EngineCrashed("dead"))
        else:
            self.begun.append(exchange)

    def abandon(self, exchange: Exchange) -> None:
        self.abandoned.append(exchange)

    async def stop(self, **_: Any) -> None:
        self.closed.set()

    def answer(self) -> list[int]:
        """Answer the oldest group; the first token of each of its rows."""
        exchange = self.begun.pop(0)
        message = cast("EmbedBatchRequest", exchange.message)
        tokens, firsts = struct.iter_unpack("<i", cast("bytes", exchange.raw)), []
        for item in message.items:
            firsts.append(next(tokens)[0])
            for _ in range(item["n_tokens"] - 1):
                next(tokens)
        vectors = struct.pack(f"<{len(firsts)}f", *firsts)
        exchange.finish((VectorsHeader(message.req_id, 1, len(firsts)), vectors))
        return firsts


def model_of_two_row_groups() -> RegisteredModel:
    empty = {item.name: "" for item in dataclasses.fields(RegisteredModel)}
    values = {
        "model_id": "m",
        "task": "embed",
        "pooling": "mean",
        "normalize": True,
        "max_tokens": 8,
        "vocab_size": 100,
    }
    parts = {"engine": EngineIdentity("held-engine", "1"), "batch": BatchPolicy(2, 100)}
    return RegisteredModel(**{**empty, **values, **parts})  # type: ignore[arg-type]


@asynccontextmanager
async def serving(turns: DeviceTurns | None = None) -> AsyncIterator[tuple[Lane, HeldWorker]]:
    worker = HeldWorker()

    async def start(model: RegisteredModel) -> Any:
        return worker

    async def no_tokenizer(model: RegisteredModel) -> Any:
        return None

    with anyio.fail_after(DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            lane = Lane(
                model_of_two_row_groups(),
                LaneRuntime(start, no_tokenizer, turns or DeviceTurns(), tasks, time.monotonic),
            )
            await lane.load()
            yield lane, worker
            tasks.cancel_scope.cancel()


async def embed(
    lane: Lane, *rows: list[int], into: list[Any] | None = None, work_class: WorkClass = WorkClass.BULK
) -> list[float]:
    dims, data = await lane.embed(rows, [str(place) for place in range(len(rows))], work_class)
    assert dims == 1
    vectors = list(struct.unpack(f"<{len(rows)}f", data))
    if into is not None:
        into.append(vectors)
    return vectors


@pytest.mark.parametrize(
    ("work_class", "expected"),
    [
        (WorkClass.JOB, [[3, 2], [13, 12], [1], [11]]),
        (WorkClass.INTERACTIVE, [[3, 2], [13, 12], [1], [11]]),
        (WorkClass.BULK, [[3, 2], [1], [13, 12], [11]]),
    ],
)
async def test_groups_of_several_requests_go_in_the_order_of_their_class_and_rows_come_back_to_their_own(
    work_class: WorkClass, expected: list[list[int]]
) -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        answers: list[Any] = []

        async def ask(*firsts: int) -> None:
            # Longer rows come first; groups are made of the shortest, so the order has to be put back.
            rows = [[first] * (8 - place) for place, first in enumerate(firsts)]
            answers.append(await embed(lane, *rows, work_class=work_class))

        callers.start_soon(ask, 1, 2, 3)
        callers.start_soon(ask, 11, 12, 13)
        order = []
        for _ in range(4):
            await anyio.wait_all_tasks_blocked()
            assert len(worker.begun) == 1
            order.append(worker.answer())
    assert order == expected
    assert answers == [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]]
    assert lane.rows_computed == 6


async def test_the_next_group_is_with_its_worker_before_the_last_ones_caller_hears_of_it() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        heard: list[Any] = []
        for first in (1, 2):
            callers.start_soon(lambda first=first: embed(lane, [first], into=heard))
        await anyio.wait_all_tasks_blocked()
        worker.answer()
        assert len(worker.begun) == 1
        assert heard == []
        await anyio.wait_all_tasks_blocked()
        assert heard == [[1.0]]
        worker.answer()


async def test_a_group_whose_caller_gave_up_before_its_turn_is_never_computed() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        callers.start_soon(embed, lane, [1])
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(embed, lane, [2])
                await anyio.wait_all_tasks_blocked()
                assert lane.turns.waiting == 1
                scope.cancel()
        assert worker.answer() == [1]
        assert worker.begun == []
        assert lane.turns.free


async def test_a_group_begun_is_counted_and_ends_its_turn_though_its_caller_gave_up() -> None:
    async with serving() as (lane, worker):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(embed, lane, [1])
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
        assert worker.abandoned == worker.begun
        assert not lane.turns.free
        worker.answer()
        assert lane.turns.free
        assert lane.rows_computed == 1


async def test_lanes_of_one_device_take_turns() -> None:
    turns = DeviceTurns()
    async with serving(turns) as (one, first), serving(turns) as (two, second), anyio.create_task_group() as callers:
        callers.start_soon(embed, one, [1])
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(embed, two, [2])
        await anyio.wait_all_tasks_blocked()
        assert second.begun == []
        first.answer()
        assert second.answer() == [2]


async def test_a_refusal_of_one_group_is_its_callers_and_the_next_is_served() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        refused: list[Exception] = []

        async def ask() -> None:
            try:
                await embed(lane, [1])
            except InvalidRequest as refusal:
                refused.append(refusal)

        callers.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        callers.start_soon(embed, lane, [2])
        await anyio.wait_all_tasks_blocked()
        worker.begun.pop(0).fail(WorkerRefusal("invalid_request", json.dumps({"item": "0"})))
        await anyio.wait_all_tasks_blocked()
        assert len(refused) == 1
        assert worker.answer() == [2]


async def test_a_dead_worker_fails_every_group_that_waits_for_its_turn() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        ended: list[str] = []

        async def ask() -> None:
            try:
                await embed(lane, [1])
            except EngineCrashed as crash:
                ended.append(crash.message)

        for _ in range(3):
            callers.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        worker.dead = True
        worker.begun.pop(0).fail(EngineCrashed("died"))
        await anyio.wait_all_tasks_blocked()
        assert sorted(ended) == ["dead", "dead", "died"]
        assert lane.turns.free


async def test_the_next_group_of_a_request_is_with_its_worker_before_its_caller_hears_of_the_last() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        callers.start_soon(embed, lane, [1], [2], [3])
        await anyio.wait_all_tasks_blocked()
        assert worker.answer() == [1, 2]
        assert len(worker.begun) == 1
        assert worker.answer() == [3]


async def test_a_request_that_fails_in_one_group_has_no_more_of_them_computed() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        refused: list[Exception] = []

        async def ask() -> None:
            try:
                await embed(lane, *[[number] for number in range(1, 8)])
            except InvalidRequest as refusal:
                refused.append(refusal)

        callers.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        worker.begun.pop(0).fail(WorkerRefusal("invalid_request", "{}"))
        await anyio.wait_all_tasks_blocked()
        assert len(refused) == 1
        assert worker.begun == []
        assert lane.turns.free


async def test_what_a_group_took_is_learned_and_expected_of_the_next() -> None:
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        assert lane.plan("embed", [3], WorkClass.INTERACTIVE).group_ms == [lane.costs.ms("embed", 3)] == [25.0]
        callers.start_soon(embed, lane, [1, 1, 1])
        await anyio.wait_all_tasks_blocked()
        worker.answer()
        assert lane.costs.ms("embed", 3) < 25.0


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (WorkClass.JOB, [[11, 12], [31], [21], [1, 2], [13, 14], [3, 4], [15, 16], [5, 6]]),
        # Nothing was said to the batch of jobs that come after it.
        (WorkClass.BULK, [[1, 2], [31], [21], [3, 4], [5, 6], [11, 12], [13, 14], [15, 16]]),
    ],
)
async def test_a_query_goes_before_the_next_group_of_a_batch_and_a_check_at_load_before_both(
    first: WorkClass, expected: list[list[int]]
) -> None:
    firsts = {WorkClass.BULK: range(1, 7), WorkClass.JOB: range(11, 17), WorkClass.INTERACTIVE: [21]}
    async with serving() as (lane, worker), anyio.create_task_group() as callers:
        for work_class in sorted(firsts, key=lambda kind: (kind is WorkClass.INTERACTIVE, kind is not first)):
            rows = [[number] for number in firsts[work_class]]
            callers.start_soon(lambda rows=rows, kind=work_class: embed(lane, *rows, work_class=kind))
            await anyio.wait_all_tasks_blocked()
        callers.start_soon(lane.checked, [31], "case")
        await anyio.wait_all_tasks_blocked()
        order = []
        while worker.begun:
            order.append(worker.answer())
            await anyio.wait_all_tasks_blocked()
    assert order == expected
