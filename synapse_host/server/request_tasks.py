"""The tasks that answer the requests of one connection, all of which end with it.

Plain asyncio tasks: a request needs none of what a task group gives its children, and starting one there costs three
times as much, a tenth of what host and worker may add to a short query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType

import anyio


class RequestTasks:
    """Use as an asynchronous context manager: leaving it cancels what still runs and waits for its end.

    ``ended`` is called at the end of every task: one that is cancelled before its first step runs nothing of its own,
    not even what it would do last. ``failed`` is called besides when a task ends with an exception, which leaving then
    raises.
    """

    def __init__(self, failed: Callable[[], None], ended: Callable[[], None]) -> None:
        self._failed = failed
        self._told = ended
        self._running: set[asyncio.Task[None]] = set()
        self._fault: BaseException | None = None

    def start(self, answer: Coroutine[object, object, None]) -> None:
        """Run ``answer`` in a task of its own."""
        task = asyncio.get_running_loop().create_task(answer)
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def __aenter__(self) -> RequestTasks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            while self._running:
                for task in self._running:
                    task.cancel()
                await asyncio.wait(self._running)
        if self._fault is not None and error is None:
            raise self._fault

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._told()
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault
            self._failed()
