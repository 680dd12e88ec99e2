"""Requests to the lanes of a shape bench, and what its worker is asked for them."""

from __future__ import annotations

import asyncio
from typing import Any

from synapse_host.admission.work_class import WorkClass
from synapse_host.errors import SynapseError
from synapse_host.testing.shape_worker import ShapeBench
from synapse_host.worker_protocol.messages import AdmitShape, EmbedBatchRequest, EvictShape


class Call:
    """One request for rows of the given numbers of tokens, and what became of it."""

    def __init__(self, bench: ShapeBench, lane: str, *counts: int) -> None:
        self.lane = bench.lanes[lane]
        self.rows = [[place + 1] * count for place, count in enumerate(counts)]
        self.plan: Any = None
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> bytes:
        with self.lane.lease():
            await self.lane.load()
            self.plan = self.lane.plan("embed", [len(row) for row in self.rows], WorkClass.BULK)
            return (await self.lane.embed(self.rows, [str(at) for at in range(len(self.rows))], self.plan))[1]

    def code(self) -> str:
        """The stable code it was refused with."""
        error = self.task.exception()
        assert isinstance(error, SynapseError)
        return error.code


def asked(bench: ShapeBench) -> tuple[str, int]:
    """What the worker has in hand: its type, and the shape or the rows."""
    message = bench.worker.in_hand
    if isinstance(message, EmbedBatchRequest):
        return message.TYPE, len(message.items)
    assert isinstance(message, AdmitShape | EvictShape)
    return message.TYPE, message.shape


async def stepped(bench: ShapeBench) -> None:
    """Let the worker answer what it has in hand, and everything follow from it."""
    bench.worker.answer()
    await bench.settle()


async def served(bench: ShapeBench, lane: str, *counts: int) -> bytes:
    """Rows computed to the end, whatever has to be compiled or dropped for them."""
    call = Call(bench, lane, *counts)
    await bench.settle()
    while not call.task.done():
        await stepped(bench)
    return await call.task
