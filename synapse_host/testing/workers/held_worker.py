"""A worker without a process for lane tests: it loads, answers, dies and stops when the test says so."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio

from synapse_host.errors import EngineCrashed
from synapse_host.supervision.exchange import Exchange
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker_fault import FaultReason, WorkerFault, crash_error
from synapse_host.worker_protocol.messages import Load, Loaded, Message, Unload, Unloaded, VectorsHeader

Reply = tuple[Message, None]


class HeldWorker:
    """What a lane sees of a worker. Nothing is answered before the test calls for it."""

    pid = 0
    idle = True
    age_s = 0.0
    answered = 0

    def __init__(self) -> None:
        self.closed = anyio.Event()
        self.fault: WorkerFault | None = None
        #: Groups that were begun and are not answered, oldest first; and those whose callers went away.
        self.begun: deque[Exchange] = deque()
        self.abandoned: list[Exchange] = []
        self._asked: deque[tuple[Message, asyncio.Future[Reply]]] = deque()

    @property
    def asked(self) -> list[str]:
        """Wire types of the other requests that wait for an answer."""
        return [message.TYPE for message, _ in self._asked]

    # --- what a lane calls ---------------------------------------------------------------------------------------

    async def request(self, message: Message, raw: bytes | None = None, **_: Any) -> Reply:
        if self.fault is not None:
            raise self._crash()
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked.append((message, answer))
        return await answer

    def exchange(self, message: Message, raw: bytes, *, drained: Callable[[], None]) -> Exchange:
        return Exchange(message, raw, drained, 1)

    def submit(self, exchange: Exchange) -> None:
        if self.fault is not None:
            exchange.fail(self._crash())
        else:
            self.begun.append(exchange)

    def abandon(self, exchange: Exchange) -> None:
        self.abandoned.append(exchange)

    async def stop(self, **_: Any) -> None:
        if self.fault is None:
            self.die("stopped")

    # --- what a test calls ---------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Answer the oldest group: the vector of each row is its first token id."""
        exchange = self.begun.popleft()
        message: Any = exchange.message
        counts = [item["n_tokens"] for item in message.items]
        tokens, place, firsts = struct.unpack(f"<{sum(counts)}i", exchange.raw or b""), 0, []
        for count in counts:
            firsts.append(tokens[place])
            place += count
        header = VectorsHeader(message.req_id, 1, len(firsts))
        exchange.finish((header, struct.pack(f"<{len(firsts)}f", *firsts)))

    def agree(self) -> None:
        """Answer the oldest of the other requests with what it asks for."""
        message, answer = self._asked.popleft()
        if not answer.done():
            answer.set_result((_agreement(message), None))

    def refuse(self, code: str) -> None:
        """Answer the oldest of the other requests with ERR."""
        _, answer = self._asked.popleft()
        if not answer.done():
            answer.set_exception(WorkerRefusal(code, "not today"))

    def die(self, reason: FaultReason) -> None:
        """End; whoever waits is told."""
        self.fault = WorkerFault(reason, f"the worker ended: {reason}")
        waiting, self.begun = [*self.begun], deque()
        for exchange in waiting:
            exchange.fail(self._crash())
        while self._asked:
            _, answer = self._asked.popleft()
            if not answer.done():
                answer.set_exception(self._crash())
        self.closed.set()

    def _crash(self) -> EngineCrashed:
        assert self.fault is not None
        return crash_error(self.fault, worker_id="held", returncode=None, output_tail="")


def _agreement(message: Message) -> Message:
    if isinstance(message, Load):
        return Loaded(message.req_id, "m1", 1, 1)
    assert isinstance(message, Unload), message
    return Unloaded(message.req_id)
