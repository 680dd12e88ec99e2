"""Watches in which order each task of the host takes what it must wait for, and fails it where the order is wrong.

The order is that of ``docs/explanation/locks.md``. A deadlock needs a circle of waiters, and none can form where nobody
waits for something while holding what stands at the same place of the list or behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from synapse_host.admission.gate import Gate
from synapse_host.direct_stream import DirectStream
from synapse_host.lanes.group_run import GroupRun
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.residency import Errand, Residency
from synapse_host.store.database import Store
from synapse_host.supervision.worker import Worker

#: From what is taken first to what is taken last.
ORDER = (
    "lane lease",
    "lane change",
    "admitted bytes",
    "device turn",
    "worker connection",
    "store writer",
    "client connection",
)


class LockOrderBroken(AssertionError):
    """A task takes or waits for something while it holds what comes after it."""


class LockWatch:
    """What each task holds."""

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[asyncio.Task[Any], list[tuple[str, object]]] = WeakKeyDictionary()
        #: How often each was taken or waited for.
        self.taken = dict.fromkeys(ORDER, 0)
        #: Broken orders, also of tasks whose exceptions nobody sees.
        self.broken: list[str] = []

    @contextmanager
    def taking(self, name: str, owner: object) -> Iterator[None]:
        """Hold ``name`` of ``owner`` for the block; raises ``LockOrderBroken``. A task may take the same twice."""
        task = asyncio.current_task()
        assert task is not None
        held = self._held.setdefault(task, [])
        for other, its_owner in held:
            same = other == name and its_owner is owner
            if not same and ORDER.index(other) >= ORDER.index(name):
                self.broken.append(f"task {task.get_name()!r} takes {name!r} while it holds {other!r}")
                raise LockOrderBroken(self.broken[-1])
        self.taken[name] += 1
        held.append((name, owner))
        try:
            yield
        finally:
            held.remove((name, owner))


#: What is taken by entering a block, and what by awaiting a call; a call that only waits counts as holding meanwhile.
_BLOCKS: tuple[tuple[type, str, str], ...] = ((Lane, "lease", "lane lease"), (Gate, "hold", "admitted bytes"))
_CALLS: tuple[tuple[type, str, str], ...] = (
    (Errand, "outcome", "lane change"),
    (Lane, "ensure_ready", "lane change"),
    (Residency, "recycling_over", "lane change"),
    (Residency, "_load", "lane change"),
    (Residency, "_unload", "lane change"),
    (Residency, "_recycle", "lane change"),
    (GroupRun, "wait", "device turn"),
    (Worker, "request", "worker connection"),
    (Worker, "ping", "worker connection"),
    (Worker, "stop", "worker connection"),
    (Store, "run", "store writer"),
    (DirectStream, "write", "client connection"),
)


@contextmanager
def watched_locks() -> Iterator[LockWatch]:
    """Watch every task for the length of the block, and fail at its end where an order was broken."""
    watch = LockWatch()
    with ExitStack() as patches:
        for owner, name, lock in _BLOCKS:
            patches.enter_context(patch.object(owner, name, _block(watch, getattr(owner, name), lock)))
        for owner, name, lock in _CALLS:
            patches.enter_context(patch.object(owner, name, _call(watch, getattr(owner, name), lock)))
        yield watch
    if watch.broken:
        raise LockOrderBroken("; ".join(watch.broken))


def _block(watch: LockWatch, original: Callable[..., Any], lock: str) -> Callable[..., Any]:
    @contextmanager
    @wraps(original)
    def watched(self: object, *args: Any, **named: Any) -> Iterator[Any]:
        with watch.taking(lock, self), original(self, *args, **named) as entered:
            yield entered

    return watched


def _call(watch: LockWatch, original: Callable[..., Any], lock: str) -> Callable[..., Any]:
    @wraps(original)
    async def watched(self: object, *args: Any, **named: Any) -> Any:
        with watch.taking(lock, self):
            return await original(self, *args, **named)

    return watched
