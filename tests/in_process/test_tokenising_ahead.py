"""Inline batches are tokenised while the engine computes the one before, in a thread, within the byte budget."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.gate import Gate
from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.alias_table import AliasTable
from synapse_host.errors import QueueFull
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.operations.constraints import BudgetRule
from synapse_host.operations.embedding import EmbedBatchParams, EmbeddingService, InlineLimits
from synapse_host.operations.registry import RequestContext
from synapse_host.operations.serving import ServingDesk
from synapse_host.operations.tokenising import INLINE_TOKENIZING_CHARS
from synapse_host.testing.no_op_lane import CountingEncoder
from synapse_host.testing.workers.held_worker import HeldWorker
from synapse_host.testing.workers.stub_lane import stub_model, until
from synapse_host.tokenization.model_tokenizer import EncodedText, ModelTokenizer
from synapse_host.tokenization.text_prompts import NO_PROMPTS

pytestmark = pytest.mark.anyio
#: Sixteen texts of two groups, long enough together to be tokenised in a thread.
TEXTS = [f"{'word ' * 60}{place}" for place in range(16)]
#: Bytes: two such batches and a half.
BUDGET = round(2.5 * (sum(map(len, TEXTS)) + 128 * len(TEXTS)))


class Tokenizer(ModelTokenizer):
    """One token a word; notes in which thread it was asked for how many texts."""

    def __init__(self) -> None:
        self.prompts = NO_PROMPTS
        self.calls: list[tuple[int, bool]] = []

    def encode(self, texts: Sequence[str], **_: Any) -> list[EncodedText]:
        """The tokens of each text."""
        self.calls.append((len(texts), threading.current_thread() is threading.main_thread()))
        return CountingEncoder().encode(texts)


class Bench:
    """embed.batch on a lane whose worker answers when it is told to."""

    def __init__(self, lane: Lane, worker: HeldWorker, tokenizer: Tokenizer) -> None:
        self.lane, self.worker, self.tokenizer = lane, worker, tokenizer
        rule = BudgetRule(deadline_ms=20_000, max_queue_ms=20_000, clock=time.monotonic)
        self.gate = Gate(byte_budget=BUDGET, clock=time.monotonic)
        self.desk = ServingDesk(cast("Any", self), self.gate, AliasTable(), rule, 1)
        self._service = EmbeddingService(self.desk, InlineLimits(64, 8192, 1 << 20), cast("Any", None), BUDGET)
        self.answers: list[list[dict[str, Any]]] = []

    async def batch(self) -> None:
        """Embed the texts inline."""
        reply = await self._service.batch(EmbedBatchParams(texts=TEXTS, model="m"), RequestContext(time.monotonic()))
        self.answers.append(reply.payload["vectors"])

    # The door: nobody is turned away at it.

    async def certified_lane(self, *_: Any) -> Lane:
        return self.lane

    async def ready(self, *_: Any) -> None:
        return

    def refuse_too_long(self, *_: Any) -> None:
        return


@asynccontextmanager
async def benched() -> AsyncIterator[Bench]:
    worker, tokenizer = HeldWorker(), Tokenizer()

    async def start(_: Any) -> Any:
        return worker

    async def read(_: Any) -> Any:
        return tokenizer

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            lane = Lane(stub_model(), LaneRuntime(start, read, DeviceTurns(), tasks, time.monotonic))
            tasks.start_soon(lane.load)
            await until(lambda: worker.asked == ["LOAD"])
            worker.agree()
            await until(lambda: lane.state == "ready")
            bench = Bench(lane, worker, tokenizer)
            yield bench
            bench.desk.tokenising.close()
            tasks.cancel_scope.cancel()


async def test_the_next_batch_is_tokenised_and_admitted_while_the_engine_computes() -> None:
    assert sum(map(len, TEXTS)) > INLINE_TOKENIZING_CHARS
    async with benched() as bench, anyio.create_task_group() as callers:
        callers.start_soon(bench.batch)
        await until(lambda: len(bench.worker.begun) == 1)
        callers.start_soon(bench.batch)
        # Both groups of the second one wait with their tokens, and the engine still has the first group of the first.
        await until(lambda: bench.lane.turns.load().groups[WorkClass.BULK] == 3)
        assert bench.tokenizer.calls == [(16, False)] * 2
        assert (len(bench.worker.begun), bench.answers) == (1, [])
        for _ in range(4):
            await until(lambda: bool(bench.worker.begun))
            bench.worker.answer()
    assert [len(vectors) for vectors in bench.answers] == [16, 16]


async def test_what_is_tokenised_ahead_stays_within_the_byte_budget() -> None:
    async with benched() as bench, anyio.create_task_group() as callers:
        callers.start_soon(bench.batch)
        await until(lambda: len(bench.worker.begun) == 1)
        callers.start_soon(bench.batch)
        await until(lambda: bench.lane.turns.load().groups[WorkClass.BULK] == 3)
        with pytest.raises(QueueFull):
            await bench.batch()
        assert len(bench.tokenizer.calls) == 2, "refused before a text of it was read"
        for _ in range(4):
            await until(lambda: bool(bench.worker.begun))
            bench.worker.answer()
    assert bench.gate.bytes_in_flight == 0
