"""Runs the groups of one lane, one after another, each under its device's execution permit.

The loop task owns the exchange with the worker, so a caller that stops waiting never leaves a half-read reply behind.
Work of different requests takes turns group by group, in the order it arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from synapse_host.errors import SynapseError

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
        """Queue ``run`` and wait for its bytes; raises what it raises. Cancelling stops the wait, not the exchange."""
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
        """Carry out queued work until cancelled."""
        while True:
            while self._queue:
                work = self._queue.popleft()
                if not work.abandoned:
                    await self._carry_out(work)
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _carry_out(self, work: _Work) -> None:
        async with self._permits:
            self.running += 1
            try:
                work.result = await work.run()
            except SynapseError as error:
                work.error = error
            finally:
                self.running -= 1
                work.done.set()
