"""Runs the groups of one lane, one after another, each under its device's execution permit.

The loop task owns the exchange with the worker, so a caller that stops waiting never leaves a half-read reply behind.
Work of different requests takes turns group by group, in the order it arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from synapse_host.errors import EngineCrashed, SynapseError
from synapse_host.lanes.host_fault import host_fault

Exchange = Callable[[], Awaitable[bytes]]


@dataclass(slots=True, eq=False)
class _Work:
    run: Exchange
    done: anyio.Event = field(default_factory=anyio.Event)
    result: bytes = b""
    error: SynapseError | None = None
    #: The caller stopped waiting; work not yet started is then dropped.
    abandoned: bool = False


class LaneExecutor:
    """A queue of exchanges and the loop that carries them out."""

    def __init__(self, permits: anyio.Semaphore) -> None:
        self._permits = permits
        self._queue: deque[_Work] = deque()
        self._arrived = anyio.Event()
        self._closed = False
        self.running = 0

    @property
    def waiting(self) -> int:
        """Groups accepted and not yet started."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """True when a group submitted now would start at once."""
        return not self._queue and not self.running and self._permits.value > 0

    async def execute(self, run: Exchange) -> bytes:
        """Queue ``run`` and wait for its bytes; raises what it raises. Cancelling stops the wait, not the exchange.

        Raises:
            EngineCrashed: the lane closed first, or ``run`` raised something that is no typed refusal.

        """
        if self._closed:
            raise _closed()
        work = _Work(run)
        self._queue.append(work)
        self._arrived.set()
        try:
            await work.done.wait()
        except BaseException:
            work.abandoned = True
            raise
        if work.error is not None:
            raise work.error
        return work.result

    async def serve(self) -> None:
        """Carry out queued work until cancelled; whoever still waits then is told."""
        try:
            while True:
                while self._queue:
                    await self._carry_out(self._queue.popleft())
                self._arrived = anyio.Event()
                await self._arrived.wait()
        finally:
            self._closed = True
            for work in self._queue:
                work.error = _closed()
                work.done.set()
            self._queue.clear()

    async def _carry_out(self, work: _Work) -> None:
        try:
            async with self._permits:
                if not work.abandoned:
                    await self._run(work)
        except SynapseError as error:
            work.error = error
        except Exception as fault:
            work.error = host_fault("a group of rows", fault)
        except BaseException:
            work.error = _closed()
            raise
        finally:
            self._tell(work)

    def _tell(self, work: _Work) -> None:
        """Wake the waiter; where more is queued, once that is on its way: an answer takes longer to build."""
        if self._queue:
            asyncio.get_running_loop().call_soon(work.done.set)
        else:
            work.done.set()

    async def _run(self, work: _Work) -> None:
        self.running += 1
        try:
            work.result = await work.run()
        finally:
            self.running -= 1


def _closed() -> EngineCrashed:
    return EngineCrashed("the lane closed before the request could run; send it again", details={"reason": "stopped"})
