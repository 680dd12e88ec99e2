"""One request to a worker and its whole reply, read to the last byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from synapse_host.supervision.reply_check import check_raw, check_reply
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.worker_fault import WorkerFault
from synapse_host.time_limits import TimeLimits
from synapse_host.worker_protocol.channel import Buffer, WorkerChannel
from synapse_host.worker_protocol.codec import check_outgoing, decode_response, encode
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.frame_budget import misfit, reply_bytes
from synapse_host.worker_protocol.messages import Message, ProgressReport
from synapse_host.worker_protocol.progress import ProgressRule

Reply = tuple[Message, bytes | bytearray | None]


class Exchange:
    """A request, where it stands, and what came of it; ``done`` is set when its reply is drained or will never come.

    ``drained`` is called at that same moment, once, before whoever waits hears of it and whether or not anyone does.
    ``dims`` is the vector width of the model that is asked, where the host knows it.
    """

    def __init__(
        self, message: Message, raw: Buffer | None, drained: Callable[[], None] | None = None, dims: int | None = None
    ) -> None:
        self.message = message
        self.payload = encode(message)
        self.raw = raw
        self.raw_bytes = 0 if raw is None else memoryview(raw).nbytes
        self.dims = dims
        self.done = asyncio.Event()
        #: What the socket would not take when the request was begun; None until it is.
        self.unsent: list[memoryview] | None = None
        self._drained = drained
        self._reply: Reply | None = None
        self._error: Exception | None = None

    def problem(self, max_frame: int) -> str | None:
        """Why the request must not be sent: the worker could not read it, or it or its answer would not fit a frame."""
        try:
            check_outgoing(self.message)
        except ProtocolFault as fault:
            return f"the request cannot be sent: {fault}"
        if (self.raw is not None) != self.message.RAW:
            return f"{self.message.TYPE} goes {'with' if self.message.RAW else 'without'} a raw frame"
        return misfit(
            self.message,
            control_bytes=len(self.payload),
            raw_bytes=self.raw_bytes,
            dims=self.dims,
            max_frame=max_frame,
        )

    def finish(self, reply: Reply) -> None:
        """The reply has come and is drained."""
        self._reply = reply
        self._settle()

    def fail(self, error: Exception) -> None:
        """There is no reply, or it was a refusal."""
        self._error = error
        self._settle()

    @property
    def answered(self) -> bool:
        """Whether the reply has come, and was no refusal."""
        return self._reply is not None

    def outcome(self) -> Reply:
        """The reply; raises what the exchange failed with."""
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply

    def _settle(self) -> None:
        try:
            if self._drained is not None:
                self._drained()
        finally:
            self.done.set()


def begin(exchange: Exchange, channel: WorkerChannel) -> None:
    """Send what the socket takes at once, unless that was done before.

    Raises:
        ProtocolFault, FrameTooLarge, ChannelClosed: as ``carry_out``.

    """
    if exchange.unsent is None:
        if channel.pending_bytes:
            raise ProtocolFault(f"{channel.pending_bytes} bytes arrived that no request asked for")
        exchange.unsent = channel.start_send(exchange.payload, exchange.raw)


async def carry_out(
    exchange: Exchange,
    channel: WorkerChannel,
    windows: SilenceWindows,
    engine: str,
    limits: TimeLimits | None = None,
) -> Reply:
    """Send the request and read until its reply is drained. Only lawful PROGRESS renews the silence window.

    ``limits`` keeps the windows of many exchanges; without it this one has its own.

    Raises:
        WorkerRefusal: the worker answered ERR.
        WorkerFault: it was silent for longer than its window.
        ProtocolFault, FrameTooLarge, ChannelClosed: it broke the protocol or went away.

    """
    operation = exchange.message.OPERATION
    window = windows.window(operation, engine)
    try:
        with (limits or TimeLimits()).limit(window) as silence:
            begin(exchange, channel)
            await channel.finish_send(exchange.unsent or [])
            rule = ProgressRule(str(getattr(exchange.message, "req_id", "")), operation)
            while isinstance(reply := decode_response(bytes(await channel.receive())), ProgressReport):
                rule.accept(reply)
                window = windows.window(operation, engine, reply.phase)
                silence.renew(window)
            check_reply(exchange.message, reply, sent_bytes=exchange.raw_bytes, dims=exchange.dims)
            raw = await channel.receive(reply_bytes(exchange.message, exchange.dims)) if reply.RAW else None
            check_raw(exchange.message, reply, raw)
            return reply, raw
    except TimeoutError as passed:
        silent = f"{exchange.message.TYPE} reported no completed work for {window:g} s"
        raise WorkerFault("silence", silent) from passed
