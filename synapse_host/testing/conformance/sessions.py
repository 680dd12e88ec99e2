"""Handles on running workers: requests out, replies in, every call waiting for its end.

A refusal nobody expected and a death are both ``AssertionError``, so a test that meets one has failed and says why.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import numpy as np
import numpy.typing as npt

from synapse_host.errors import EngineCrashed, InvalidRequest
from synapse_host.hookspecs import Pooling
from synapse_host.supervision.launch import Launched
from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.worker import Worker
from synapse_host.testing.conformance.model_files import ModelUnderTest
from synapse_host.worker_protocol.codec import decode_response, encode
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Loaded,
    Message,
    Ping,
    Pong,
    RerankSequences,
    Unload,
    VectorsHeader,
)

TokenIds: TypeAlias = npt.NDArray[np.int32]
Vectors: TypeAlias = npt.NDArray[np.float32]
Scores: TypeAlias = npt.NDArray[np.float32]
#: Runs a coroutine function with its arguments where the workers live, and waits for it.
Call: TypeAlias = Callable[..., Any]

#: Seconds for what takes milliseconds on an idle machine: a start, a handshake, an exit.
PATIENCE_S = 30.0


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


class Session:
    """One observed worker. Every method waits for the reply."""

    def __init__(self, call: Call, worker: Worker, journal: Path) -> None:
        self._call = call
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

    def request(self, message: Message, raw: bytes | None = None) -> tuple[Any, bytes | None]:
        """The reply and its raw frame; raises ``Refused`` or ``Died``."""
        try:
            reply: tuple[Any, bytes | None] = self._call(self._worker.request, message, raw)
        except WorkerRefusal as refusal:
            raise Refused(message.TYPE, refusal.code, refusal.message) from refusal
        except InvalidRequest as refusal:
            raise AssertionError(f"the suite asked for too much: {refusal}") from refusal
        except EngineCrashed as crash:
            raise Died(f"{message.TYPE}: {crash_story(crash)}") from crash
        return reply

    def load(self, model: ModelUnderTest, dtype: str, /, **changes: str) -> Loaded:
        """Load ``model``."""
        reply, _ = self.request(model.load_request(self.next_id(), dtype, **changes))
        loaded: Loaded = reply
        return loaded

    def embed(
        self, model_ref: str, rows: Sequence[TokenIds], *, pooling: Pooling = "mean", normalize: bool = True
    ) -> Vectors:
        """One vector a row, float32 [rows, dims]."""
        message, raw = embed_request(self.next_id(), model_ref, rows, pooling, normalize)
        header, vectors = self.request(message, raw)
        assert isinstance(header, VectorsHeader)
        assert vectors is not None
        return np.frombuffer(vectors, dtype="<f4").reshape(header.n, header.dims)

    def rerank(self, model_ref: str, rows: Sequence[TokenIds]) -> Scores:
        """One score a composed sequence, float32 [rows]."""
        raw = b"".join(np.asarray(row, dtype="<i4").tobytes() for row in rows)
        message = RerankSequences(self.next_id(), model_ref, [{"n_tokens": len(row)} for row in rows])
        _, scores = self.request(message, raw)
        assert scores is not None
        return np.frombuffer(scores, dtype="<f4")

    def unload(self, model_ref: str) -> None:
        """Unload one model."""
        self.request(Unload(self.next_id(), model_ref))

    def ping(self) -> Pong:
        """The worker's vital signs."""
        pong, _ = self.request(Ping(self.next_id()))
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
        self._call(self._worker.stop)

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._journal.read_text(encoding="utf-8").splitlines()]


class RawSession:
    """A worker after its handshake: frames go out and come in as the test says."""

    def __init__(self, call: Call, launched: Launched) -> None:
        self._call = call
        self._launched = launched
        self.hello = launched.hello
        #: Set by the test that loads a model.
        self.model_ref = ""

    def send(self, message: Message, raw: bytes | None = None) -> None:
        """Send one request without waiting for anything."""
        self._call(self._launched.channel.send, encode(message), raw)

    def receive(self) -> Any:
        """The next reply that is no PROGRESS; its raw frame is read and dropped."""
        while (message := decode_response(self._call(self._launched.channel.receive))).TYPE == "PROGRESS":
            pass
        if message.RAW:
            self._call(self._launched.channel.receive)
        return message

    def hang_up(self) -> None:
        """Close the connection as a host that dies."""

        async def close() -> None:
            self._launched.channel.close()

        self._call(close)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._launched.process.terminate()

    def exit_status(self, deadline_s: float = PATIENCE_S) -> int | None:
        """How the process ended, negative for a signal; None when it runs ``deadline_s`` seconds from now."""

        async def wait() -> None:
            with anyio.move_on_after(deadline_s):
                await self._launched.process.exited.wait()

        self._call(wait)
        return self._launched.process.returncode


def crash_story(crash: EngineCrashed) -> str:
    """What happened and the last words of the worker."""
    details = crash.details or {}
    return f"{crash} ({details.get('exit')}); the end of its output:\n{details.get('output_tail', '')}"
