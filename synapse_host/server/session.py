"""One connection of the consumer socket: frames in, requests to their handlers, answers out in any order.

The session reads in its own task and answers each request in another. What it cannot admit it answers from the reading
task, so a peer that sends without reading stops being read. A peer that goes away cancels the waits of its requests.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import field
from typing import Any

import anyio

from synapse_host.direct_stream import GONE, DirectStream
from synapse_host.errors import EncodeFailed, InvalidRequest, QueueFull, SynapseError
from synapse_host.framing import HEADER_BYTES, Buffer, FrameDecoder, FrameTooLarge
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.server.drain import Drain
from synapse_host.server.envelope import (
    Hello,
    Request,
    VectorForm,
    decode_frame,
    encode_error,
    encode_hello,
    encode_reply,
)
from synapse_host.server.ingress import IngressBudget
from synapse_host.server.malformed import MalformedFrame
from synapse_host.server.request_tasks import RequestTasks
from synapse_host.settings import ServerSettings
from synapse_host.values import value_object

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)
#: Bytes read at once: the first of an ordinary request, the second while a large frame arrives.
_READ_BYTES = 64 * 1024
_LARGE_READ_BYTES = 256 * 1024


@value_object
class Service:
    """What all sessions of one host share."""

    registry: Registry
    limits: ServerSettings
    module_generation: int
    version: str
    clock: Callable[[], float]
    ingress: IngressBudget
    drain: Drain = field(default_factory=Drain)


class Session:
    """Serves one connected peer until it goes away."""

    def __init__(self, stream: DirectStream, service: Service, *, peer_uid: int | None = None) -> None:
        self._stream = stream
        self._service = service
        self._limits = service.limits
        self._peer_uid = peer_uid
        self._number = next(_numbers)
        self._decoder = FrameDecoder(service.limits.max_frame)
        self._vectors: VectorForm = "json"
        self._frames_seen = 0
        self._in_flight = 0
        self._reading = anyio.CancelScope()
        self._requests = RequestTasks(failed=self._reading.cancel, ended=self._leave)

    async def run(self) -> None:
        """Serve until the peer goes away, breaks the framing or stops reading."""
        try:
            async with self._requests:
                with self._reading:
                    await self._read_until_gone()
        finally:
            self._service.ingress.release(self._number)

    async def _read_until_gone(self) -> None:
        try:
            while True:
                await self._receive()
                while (frame := self._decoder.next_frame()) is not None:
                    await self._take(frame)
                self._service.ingress.hold(self._number, self._decoder.pending_bytes)
        except GONE as fault:
            _log.debug("connection %d ended: %r", self._number, fault)
        except FrameTooLarge as fault:
            await self._close_with(InvalidRequest(f"{fault}; the connection is closed", channel=True))
        except TimeoutError:
            await self._close_with(self._stalled())
        except QueueFull as refusal:
            await self._close_with(refusal)

    async def _receive(self) -> None:
        wanted = self._decoder.wanted_bytes
        size = min(max(wanted, _READ_BYTES), _LARGE_READ_BYTES)
        if self._decoder.pending_bytes or wanted != HEADER_BYTES:
            with anyio.fail_after(self._limits.stall_s):
                self._decoder.feed(await self._stream.receive(size))
        else:
            self._decoder.feed(await self._stream.receive(size))

    async def _take(self, frame: bytes) -> None:
        self._frames_seen += 1
        try:
            asked = decode_frame(frame)
            if isinstance(asked, Hello):
                await self._greet(asked)
            else:
                await self._admit(asked)
        except MalformedFrame as fault:
            await self._refuse(fault.id, fault.error)

    async def _greet(self, hello: Hello) -> None:
        if self._frames_seen > 1:
            raise MalformedFrame(None, "a hello may only be the first frame of a connection; open a new one")
        self._vectors = hello.vectors
        answer = encode_hello(
            version=self._service.version,
            module_generation=self._service.module_generation,
            max_frame=self._limits.max_frame,
            vectors=hello.vectors,
        )
        await self._stream.write(answer)

    async def _admit(self, request: Request) -> None:
        try:
            self._check_in_flight()
            self._service.drain.enter()
        except QueueFull as refusal:
            await self._refuse(request.id, refusal)
            return
        self._in_flight += 1
        context = RequestContext(self._service.clock(), self._peer_uid, request.flow_id)
        self._requests.start(self._answer(request, context))

    def _check_in_flight(self) -> None:
        if self._in_flight >= self._limits.max_in_flight:
            raise QueueFull(
                f"{self._in_flight} requests of this connection are unanswered, which is its limit; "
                "read answers before sending more"
            )

    async def _answer(self, request: Request, context: RequestContext) -> None:
        try:
            parts = await self._produce(request, context)
            await self._stream.write(*parts)
        except GONE:
            self._reading.cancel()

    def _leave(self) -> None:
        self._in_flight -= 1
        self._service.drain.leave()

    async def _produce(self, request: Request, context: RequestContext) -> list[Buffer]:
        service = self._service
        try:
            reply = await service.registry.dispatch(request.method, request.params, context)
            return encode_reply(
                request,
                reply,
                vectors=self._vectors,
                module_generation=service.module_generation,
                max_frame=self._limits.max_frame,
            )
        except SynapseError as error:
            refusal = error
        except Exception as fault:
            _log.exception("%s failed", request.method)
            refusal = EncodeFailed(f"{request.method} failed inside the host: {fault!r}; report it with the host's log")
        return [self._refusal(request.id, refusal)]

    async def _refuse(self, request_id: Any, error: SynapseError) -> None:
        await self._stream.write(self._refusal(request_id, error))

    def _refusal(self, request_id: Any, error: SynapseError) -> bytes:
        generation = self._service.module_generation
        return encode_error(request_id, error, module_generation=generation, max_frame=self._limits.max_frame)

    async def _close_with(self, error: SynapseError) -> None:
        """Say why, then let the connection close."""
        try:
            await self._refuse(None, error)
        except GONE:
            _log.debug("connection %d ended before it could be told: %s", self._number, error.message)

    def _stalled(self) -> InvalidRequest:
        return InvalidRequest(
            f"half a frame ({self._decoder.pending_bytes} bytes) stood still for {self._limits.stall_s} s; "
            "send whole frames; the connection is closed",
            channel=True,
        )
