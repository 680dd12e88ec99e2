"""Real workers for plain, synchronous tests: an event loop in a thread of its own, and handles on what runs in it.

Workers are started and spoken to by the host's own ``supervision``. A refusal nobody expected and a death are both
``AssertionError``, so a test that meets one has failed and says why.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import numpy as np
import numpy.typing as npt
from anyio.abc import TaskGroup, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.hookspecs import Pooling
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.launch import Launched, launch
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.conformance.model_files import ModelUnderTest
from synapse_host.worker_protocol.codec import decode_response, encode
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Loaded,
    Message,
    Ping,
    Pong,
    Unload,
    VectorsHeader,
)

TokenIds: TypeAlias = npt.NDArray[np.int32]
Vectors: TypeAlias = npt.NDArray[np.float32]

#: Seconds for what takes milliseconds on an idle machine: a start, a handshake, an exit.
PATIENCE_S = 30.0
_OBSERVED = "synapse_host.testing.conformance.observed_worker"


class Refused(AssertionError):
    """The worker answered ERR. A test that expects it asks with ``refusal_of``."""

    def __init__(self, request: str, code: str, message: str) -> None:
        super().__init__(f"{request} was refused with {code}: {message}")
        self.code = code
        self.message = message


class Died(AssertionError):
    """The worker ended, broke the protocol or was silent too long."""


def refusal_of(what: str, call: Callable[[], object]) -> Refused:
    """How ``call`` was refused; fails when it was served."""
    try:
        call()
    except Refused as refusal:
        return refusal
    raise AssertionError(f"{what} was served; it must be refused with an ERR")


def embed_request(
    req_id: str, model_ref: str, rows: Sequence[TokenIds], pooling: str, normalize: bool
) -> tuple[EmbedBatchRequest, bytes]:
    """EMBED_BATCH for ``rows`` and its raw frame; items are called ``row-0`` and so on."""
    items = [{"id": f"row-{place}", "n_tokens": len(row)} for place, row in enumerate(rows)]
    raw = b"".join(np.asarray(row, dtype="<i4").tobytes() for row in rows)
    return EmbedBatchRequest(req_id, model_ref, pooling, normalize, items), raw


class Driver:
    """Starts workers of ``backend``; their sockets and journals lie below ``folder``. Made by ``open_driver``."""

    def __init__(self, backend: str, folder: Path, portal: BlockingPortal, tasks: TaskGroup) -> None:
        self._backend = backend
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
            worker = self.call(Worker.start, self._spec(command=command, patience_s=PATIENCE_S), self._tasks)
        except EngineCrashed as crash:
            raise Died(_story(crash)) from crash
        return Session(self, worker, journal)

    def launch(self, *, within_host_deadlines: bool = False) -> RawSession:
        """The worker program exactly as the host runs it, after its handshake, with nothing between us and it."""
        try:
            spec = self._spec() if within_host_deadlines else self._spec(patience_s=PATIENCE_S)
            raw = RawSession(self, self.call(launch, spec, self._tasks))
        except EngineCrashed as crash:
            raise Died(_story(crash)) from crash
        self._raw.append(raw)
        return raw

    def close(self) -> None:
        """Close the connections of launched workers; the others close with the end of their worker."""
        for raw in self._raw:
            raw.hang_up()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a coroutine function in the event loop and wait for it."""
        return self._portal.call(function, *arguments)

    def _spec(self, *, command: Sequence[str] | None = None, patience_s: float | None = None) -> WorkerSpec:
        worker_id = f"synapse-conformance-{next(self._numbers)}"
        spec = WorkerSpec(self._backend, worker_id, worker_socket_path(self._folder, worker_id), command=command)
        if patience_s is None:
            return spec
        return WorkerSpec(
            spec.backend,
            worker_id,
            spec.socket_path,
            command=command,
            accept_deadline_s=patience_s,
            hello_deadline_s=patience_s,
        )


@contextmanager
def open_driver(backend: str, folder: Path) -> Iterator[Driver]:
    """A driver whose workers are killed at the end."""
    with start_blocking_portal() as portal:
        ended, (tasks, end) = portal.start_task(_hold_workers)
        driver = Driver(backend, folder, portal, tasks)
        try:
            yield driver
        finally:
            driver.close()
            portal.call(end)
            ended.result()


class Session:
    """One observed worker. Every method waits for the reply."""

    def __init__(self, driver: Driver, worker: Worker, journal: Path) -> None:
        self._driver = driver
        self._worker = worker
        self._journal = journal
        self._numbers = itertools.count(1)
        self.last_req_id = ""

    @property
    def alive(self) -> bool:
        """Whether a request may still be answered."""
        return self._worker.alive

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._worker.pid

    def output_tail(self) -> str:
        """The last 8 KiB of what the worker printed."""
        return self._worker.output_tail()

    def next_id(self) -> str:
        """A request id no request of this worker had."""
        self.last_req_id = f"request-{next(self._numbers)}"
        return self.last_req_id

    def request(self, message: Message, raw: bytes | None = None, *, operation: str) -> tuple[Any, bytes | None]:
        """The reply and its raw frame; raises ``Refused`` or ``Died``."""
        ask = partial(self._worker.request, message, raw, operation=operation)
        try:
            reply: tuple[Any, bytes | None] = self._driver.call(ask)
        except WorkerRefusal as refusal:
            raise Refused(message.TYPE, refusal.code, refusal.message) from refusal
        except InvalidRequest as refusal:
            raise AssertionError(f"the suite asked for too much: {refusal}") from refusal
        except EngineCrashed as crash:
            raise Died(f"{message.TYPE}: {_story(crash)}") from crash
        return reply

    def load(self, model: ModelUnderTest, dtype: str, /, **changes: str) -> Loaded:
        """Load ``model``."""
        reply, _ = self.request(model.load_request(self.next_id(), dtype, **changes), operation="load")
        loaded: Loaded = reply
        return loaded

    def embed(
        self, model_ref: str, rows: Sequence[TokenIds], *, pooling: Pooling = "mean", normalize: bool = True
    ) -> Vectors:
        """One vector a row, float32 [rows, dims]."""
        message, raw = embed_request(self.next_id(), model_ref, rows, pooling, normalize)
        header, vectors = self.request(message, raw, operation="embed")
        assert isinstance(header, VectorsHeader)
        assert vectors is not None
        return np.frombuffer(vectors, dtype="<f4").reshape(header.n, header.dims)

    def unload(self, model_ref: str) -> None:
        """Unload one model."""
        self.request(Unload(self.next_id(), model_ref), operation="unload")

    def ping(self) -> Pong:
        """The worker's vital signs."""
        pong, _ = self.request(Ping(self.next_id()), operation="ping")
        answer: Pong = pong
        return answer

    def reports(self) -> list[tuple[int, str]]:
        """Counter and phase of every progress the plugin reported in the last request."""
        return [(line["completed"], line["phase"]) for line in self._lines() if line.get("req_id") == self.last_req_id]

    def network_attempts(self) -> list[str]:
        """Every attempt so far to reach a network."""
        return [line["network"] for line in self._lines() if "network" in line]

    def stop(self) -> None:
        """End the worker."""
        self._driver.call(self._worker.stop)

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._journal.read_text(encoding="utf-8").splitlines()]


class RawSession:
    """A worker after its handshake: frames go out and come in as the test says."""

    def __init__(self, driver: Driver, launched: Launched) -> None:
        self._driver = driver
        self._launched = launched
        self.hello = launched.hello
        #: Set by the test that loads a model.
        self.model_ref = ""

    def send(self, message: Message, raw: bytes | None = None) -> None:
        """Send one request without waiting for anything."""
        self._driver.call(self._launched.channel.send, encode(message), raw)

    def receive(self) -> Any:
        """The next reply that is no PROGRESS; its raw frame is read and dropped."""
        while (message := decode_response(self._driver.call(self._launched.channel.receive))).TYPE == "PROGRESS":
            pass
        if message.RAW:
            self._driver.call(self._launched.channel.receive)
        return message

    def hang_up(self) -> None:
        """Close the connection as a host that dies."""

        async def close() -> None:
            self._launched.channel.close()

        self._driver.call(close)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._launched.process.terminate()

    def exit_status(self, deadline_s: float = PATIENCE_S) -> int | None:
        """How the process ended, negative for a signal; None when it runs ``deadline_s`` seconds from now."""

        async def wait() -> None:
            with anyio.move_on_after(deadline_s):
                await self._launched.process.exited.wait()

        self._driver.call(wait)
        return self._launched.process.returncode


async def _hold_workers(*, task_status: TaskStatus[tuple[TaskGroup, Callable[[], None]]]) -> None:
    """Keep a task group for workers until it is told to end; then kill what still runs in it."""
    end = anyio.Event()
    async with anyio.create_task_group() as tasks:
        task_status.started((tasks, end.set))
        await end.wait()
        tasks.cancel_scope.cancel()


def _story(crash: EngineCrashed) -> str:
    details = crash.details or {}
    return f"{crash} ({details.get('exit')}); the end of its output:\n{details.get('output_tail', '')}"
