"""One request to a worker and its whole reply, read to the last byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio

from synapse_host.supervision.refusals import WorkerRefusal
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.worker_protocol.channel import Buffer, WorkerChannel
from synapse_host.worker_protocol.codec import decode_response, encode
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import (
    EmbedBatchRequest,
    Err,
    Load,
    Loaded,
    Message,
    Ping,
    Pong,
    ProgressReport,
    Unload,
    Unloaded,
    VectorsHeader,
)
from synapse_host.worker_protocol.progress import ProgressRule

Reply = tuple[Message, bytes | None]

#: Request -> the one reply, besides ERR, that ends it.
_REPLIES: Mapping[type[Message], type[Message]] = {
    Load: Loaded,
    EmbedBatchRequest: VectorsHeader,
    Unload: Unloaded,
    Ping: Pong,
}
_F32_BYTES = 4


class Exchange:
    """A request, where it stands, and what came of it; ``done`` is set when its reply is drained or will never come.

    ``drained`` is called at that same moment, once, whether or not anyone still waits for the reply.
    """

    def __init__(
        self, message: Message, raw: Buffer | None, operation: str, drained: Callable[[], None] | None
    ) -> None:
        self.message = message
        self.payload = encode(message)
        self.raw = raw
        self.operation = operation
        self.req_id = str(getattr(message, "req_id", ""))
        self.done = anyio.Event()
        self._drained = drained
        self._reply: Reply | None = None
        self._error: Exception | None = None

    def finish(self, reply: Reply) -> None:
        """The reply has come and is drained."""
        self._reply = reply
        self._settle()

    def fail(self, error: Exception) -> None:
        """There is no reply, or it was a refusal."""
        self._error = error
        self._settle()

    def outcome(self) -> Reply:
        """The reply; raises what the exchange failed with."""
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply

    def _settle(self) -> None:
        self.done.set()
        if self._drained is not None:
            self._drained()


async def carry_out(exchange: Exchange, channel: WorkerChannel, windows: SilenceWindows, engine: str) -> Reply:
    """Send the request and read until its reply is drained. Only lawful PROGRESS renews the silence window.

    Raises:
        WorkerRefusal: the worker answered ERR.
        WorkerFault: it was silent for longer than its window.
        ProtocolFault, FrameTooLarge, ChannelClosed: it broke the protocol or went away.

    """
    if channel.pending_bytes:
        raise ProtocolFault(f"{channel.pending_bytes} bytes arrived that no request asked for")
    window = windows.window(exchange.operation, engine)
    with anyio.CancelScope(deadline=anyio.current_time() + window) as silence:
        await channel.send(exchange.payload, exchange.raw)
        rule = ProgressRule(exchange.req_id, exchange.operation)
        while isinstance(message := decode_response(await channel.receive()), ProgressReport):
            rule.accept(message)
            window = windows.window(exchange.operation, engine, message.phase)
            silence.deadline = anyio.current_time() + window
        _check_reply(exchange, message)
        raw = await channel.receive() if message.RAW else None
        _check_raw(message, raw)
        return message, raw
    raise WorkerFault("silence", f"{exchange.message.TYPE} reported no completed work for {window:g} s")


def _check_reply(exchange: Exchange, message: Message) -> None:
    answered: Any = getattr(message, "req_id", None)
    if isinstance(message, Err) and answered is None:
        raise ProtocolFault(f"the worker could not read {exchange.message.TYPE}: {message.msg}")
    if answered != exchange.req_id:
        raise ProtocolFault(f"{message.TYPE} answers request {answered!r} while {exchange.req_id!r} is in flight")
    if isinstance(message, Err):
        raise WorkerRefusal(message.code, message.msg)
    expected = _REPLIES[type(exchange.message)]
    if not isinstance(message, expected):
        raise ProtocolFault(f"{message.TYPE} answers {exchange.message.TYPE}, which {expected.TYPE} answers")
    if isinstance(message, VectorsHeader) and isinstance(exchange.message, EmbedBatchRequest):
        rows = len(exchange.message.items)
        if message.n != rows:
            raise ProtocolFault(f"VECTORS holds {message.n} rows for a batch of {rows}")


def _check_raw(message: Message, raw: bytes | None) -> None:
    if isinstance(message, VectorsHeader):
        expected, actual = message.n * message.dims * _F32_BYTES, len(raw or b"")
        if actual != expected:
            raise ProtocolFault(
                f"the frame after VECTORS has {actual} bytes; {message.n} rows of {message.dims} dims take {expected}"
            )
