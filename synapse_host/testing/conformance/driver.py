"""Starts real workers for plain, synchronous tests, in an event loop in a thread of its own.

They are started and spoken to by the host's own ``supervision``.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from synapse_host.errors import EngineCrashed
from synapse_host.hookspecs import BackendSettings
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.launch import launch
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.conformance.sessions import PATIENCE_S, Died, RawSession, Session, crash_story

_OBSERVED = "synapse_host.testing.conformance.observed_worker"


class Driver:
    """Starts workers of ``backend``; their sockets and journals lie below ``folder``. Made by ``open_driver``."""

    def __init__(
        self, backend: str, folder: Path, portal: BlockingPortal, tasks: TaskGroup, settings: BackendSettings
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._folder = folder
        self._portal = portal
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._raw: list[RawSession] = []

    def start(self, *, backend: str | None = None, noisy: bool = False) -> Session:
        """An observed worker, of ``backend`` when it is another one, behind the host's ``Worker``."""
        journal = self._folder / f"journal-{next(self._numbers)}"
        noise = "NOISY" if noisy else "QUIET"
        command = (sys.executable, "-P", "-m", _OBSERVED, str(journal), noise, backend or self._backend)
        try:
            worker = self.call(Worker.start, self._spec(command=command), self._tasks)
        except EngineCrashed as crash:
            raise Died(crash_story(crash)) from crash
        return Session(self.call, worker, journal)

    def launch(self, *, within_host_deadlines: bool = False) -> RawSession:
        """The worker program exactly as the host runs it, after its handshake, with nothing between us and it."""
        try:
            launched = self.call(launch, self._spec(patient=not within_host_deadlines), self._tasks)
        except EngineCrashed as crash:
            raise Died(crash_story(crash)) from crash
        raw = RawSession(self.call, launched)
        self._raw.append(raw)
        return raw

    def close(self) -> None:
        """Close the connections of launched workers; the others close with the end of their worker."""
        for raw in self._raw:
            raw.hang_up()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine function in the event loop and wait for it."""
        return self._portal.call(function, *arguments)

    def _spec(self, *, command: Sequence[str] | None = None, patient: bool = True) -> WorkerSpec:
        worker_id = f"synapse-conformance-{next(self._numbers)}"
        socket_path = worker_socket_path(self._folder, worker_id)
        spec = WorkerSpec(self._backend, worker_id, socket_path, command=command, settings=self._settings)
        return replace(spec, accept_deadline_s=PATIENCE_S, hello_deadline_s=PATIENCE_S) if patient else spec


@contextmanager
def open_driver(backend: str, folder: Path, settings: BackendSettings = MappingProxyType({})) -> Iterator[Driver]:
    """A driver whose workers, told of ``settings``, are killed at the end."""
    with start_blocking_portal() as portal:
        ended, (tasks, end) = portal.start_task(_hold_workers)
        driver = Driver(backend, folder, portal, tasks, settings)
        try:
            yield driver
        finally:
            driver.close()
            portal.call(end)
            ended.result()


async def _hold_workers(*, task_status: TaskStatus[tuple[TaskGroup, Callable[[], None]]]) -> None:
    """Keep a task group for workers until it is told to end; then kill what still runs in it."""
    end = anyio.Event()
    async with anyio.create_task_group() as tasks:
        task_status.started((tasks, end.set))
        await end.wait()
        tasks.cancel_scope.cancel()
