"""Background tasks whose mistakes stay their own.

In a task group one exception ends all the others: a slip in the code that buries one worker would stop the host. Here
it is logged and the task alone ends. What its waiters are told is the task's own business; this is the last net.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVarTuple

from anyio.abc import TaskGroup

_log = logging.getLogger(__name__)
Arguments = TypeVarTuple("Arguments")


class GuardedTasks:
    """The ``start_soon`` of ``group``, for code that must not be able to end it."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group

    def start_soon(
        self, work: Callable[[*Arguments], Awaitable[object]], *args: *Arguments, name: object = None
    ) -> None:
        """Run ``work`` in the background; an exception that leaves it is logged with its traceback."""

        async def guarded() -> None:
            try:
                await work(*args)
            except Exception:
                _log.exception("background task %s failed inside the host", name or getattr(work, "__qualname__", work))

        self._group.start_soon(guarded, name=name)
