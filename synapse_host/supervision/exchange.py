"""One request to a worker and its whole reply, judged frame by frame. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from synapse_host.framing import Buffer
from synapse_host.supervision.reply_check import check_raw, check_reply
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
        #: Bytes of the frame the reply has yet to bring, where they are known before its header.
        self.awaited = 0
        #: What the reply's control frame said, once it is here and a raw frame follows.
        self._header: Message | None = None
        self._rule = ProgressRule(str(getattr(message, "req_id", "")), message.OPERATION)
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

    def take(self, frame: bytes | bytearray) -> ProgressReport | Reply | None:
        """Judge the next frame that came: a report of progress, the whole reply, or None where its raw frame follows.

        Raises:
            WorkerRefusal: the worker answered ERR.
            ProtocolFault: it is nothing that may come now.

        """
        if self._header is None:
            reply = decode_response(bytes(frame))
            if isinstance(reply, ProgressReport):
                self._rule.accept(reply)
                return reply
            check_reply(self.message, reply, sent_bytes=self.raw_bytes, dims=self.dims)
            if reply.RAW:
                self._header, self.awaited = reply, reply_bytes(self.message, self.dims)
                return None
            check_raw(self.message, reply, None)
            return reply, None
        check_raw(self.message, self._header, frame)
        return self._header, frame

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
