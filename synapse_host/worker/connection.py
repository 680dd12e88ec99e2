"""The worker's end of the host connection: a blocking stream that carries whole frames."""

from __future__ import annotations

import threading

from synapse_host.framing import FrameDecoder, FrameTooLarge, frame_header
from synapse_host.worker.host_stream import HostStream
from synapse_host.worker_protocol.codec import encode
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import DEFAULT_MAX_FRAME, Message

#: Least and largest read in bytes; between them a read asks for what completes the frame in progress.
_LEAST_READ = 64 * 1024
_LARGEST_READ = 1024 * 1024


class HostConnection:
    """Frames over ``stream``. One thread reads; sends may come from any thread and never mix."""

    def __init__(self, stream: HostStream, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self._stream = stream
        self._max_frame = max_frame
        self._decoder = FrameDecoder(max_frame)
        self._sending = threading.Lock()
        #: Returns when the host has closed its end.
        self.wait_for_end = stream.wait_for_end

    @property
    def max_frame(self) -> int:
        """The largest payload in bytes, either way."""
        return self._max_frame

    def lower_max_frame(self, max_frame: int) -> None:
        """Take the negotiated frame size."""
        self._max_frame = self._decoder.limit = max_frame

    def read_frame(self) -> bytes | None:
        """The next payload, or None when the host closed; raises ``ProtocolFault`` when a frame breaks the rules."""
        try:
            while (frame := self._decoder.next_frame()) is None:
                data = self._read()
                if not data:
                    self._check_boundary()
                    return None
                self._decoder.feed(data)
        except FrameTooLarge as problem:
            raise ProtocolFault(f"the host sent a {problem}") from problem
        return frame

    def read_raw(self) -> bytes:
        """The raw frame of the request just read; raises ``ProtocolFault`` also when the connection ends instead."""
        frame = self.read_frame()
        if frame is None:
            raise ProtocolFault("the connection ended where the raw frame of a request belongs")
        return frame

    def send(self, message: Message, raw: memoryview | None = None) -> None:
        """Send ``message`` and the raw frame that belongs to it.

        Raises:
            FrameTooLarge: before anything was sent.
            OSError: the host is gone.

        """
        payload = encode(message)
        parts: list[bytes | memoryview] = [frame_header(len(payload), self._max_frame), payload]
        if raw is not None:
            parts += [frame_header(raw.nbytes, self._max_frame), raw]
        with self._sending:
            self._stream.send(parts)

    def close(self) -> None:
        """Give the connection up."""
        self._stream.close()

    def _read(self) -> bytes:
        return self._stream.read(max(_LEAST_READ, min(self._decoder.wanted_bytes, _LARGEST_READ)))

    def _check_boundary(self) -> None:
        pending = self._decoder.pending_bytes
        if pending:
            raise ProtocolFault(f"the host closed the connection after {pending} bytes of an unfinished frame")
