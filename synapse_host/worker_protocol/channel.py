"""The host's end of a worker connection: whole frames in and out, over any stream of bytes.

What arrives is told by calls from the event loop, not waited for by a task: a reply is read, judged and handed on in
the one turn of the loop its bytes come in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from synapse_host.framing import Buffer, FrameDecoder, frame_header

#: Least and largest read in bytes; between them a read asks for what completes the frame in progress.
_LEAST_READ = 64 * 1024
_LARGEST_READ = 1024 * 1024

#: An awaited frame of this many bytes is received in one piece of memory. Joined from the pieces it came in it takes
#: twice its size, which the allocator then gives back to the system and asks for again with every reply.
_LARGE_FRAME = 1024 * 1024


class ChannelClosed(Exception):
    """The worker's end of the connection is gone; the message says whether a frame was cut short."""


class Receiver(Protocol):
    """What a ``ByteStream`` tells of what arrives, one call after the other, from the event loop."""

    def room(self) -> int | memoryview:
        """Where the next bytes go: how many at most, or the memory to fill."""

    def arrived(self, data: bytes) -> None:
        """These bytes came."""

    def filled(self, count: int) -> None:
        """So many bytes came into the memory that ``room`` gave."""

    def ended(self, problem: OSError | None) -> None:
        """Nothing more will come, in order or because of ``problem``; the last call."""


class ByteStream(Protocol):
    """What carries the bytes: a Unix socket, or anything that can call back when bytes have come, as a named pipe."""

    def start(self, receiver: Receiver) -> None:
        """Tell ``receiver`` of everything from now on."""

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write every part in order: at once what can be, the rest as soon as it can be.

        Raises ``OSError`` when the peer is gone; a peer that goes later is told to the receiver.
        """

    @property
    def sending(self) -> bool:
        """Whether something given to ``send`` is still to be written."""

    def stop(self) -> None:
        """Tell of nothing any more; what arrives stays where it is."""

    def close(self) -> None:
        """Give the connection up; safe to call twice."""


class WorkerChannel:
    """Frames over ``stream``, each at most ``max_frame`` bytes."""

    def __init__(self, stream: ByteStream, max_frame: int) -> None:
        self._stream = stream
        self._max_frame = max_frame
        self._decoder = FrameDecoder(max_frame)
        #: A large frame under way, and how much of it has come.
        self._large: bytearray | None = None
        self._filled = 0
        self._closed: ChannelClosed | None = None
        self._heard: Callable[[], None] = _ignore
        stream.start(self)

    @property
    def max_frame(self) -> int:
        """The largest payload in bytes, either way."""
        return self._max_frame

    @property
    def pending_bytes(self) -> int:
        """Bytes received that no one has taken as a frame."""
        return self._decoder.pending_bytes

    @property
    def sending(self) -> bool:
        """Whether something sent is still to be written."""
        return self._stream.sending

    def lower_max_frame(self, max_frame: int) -> None:
        """Take the negotiated frame size."""
        self._max_frame = self._decoder.limit = max_frame

    def attach(self, heard: Callable[[], None]) -> None:
        """Call ``heard`` whenever there may be another frame, or the end."""
        self._heard = heard

    def send(self, payload: bytes, raw: Buffer | None = None) -> None:
        """Send a control frame and, when given, the raw frame that belongs to it, which is not copied.

        Raises:
            FrameTooLarge: before anything was sent.
            ChannelClosed: the worker no longer reads.

        """
        control = frame_header(len(payload), self._max_frame) + payload
        parts: list[Buffer] = [control]
        if raw is not None:
            view = memoryview(raw).cast("B")
            parts = [control + frame_header(view.nbytes, self._max_frame), view]
        try:
            self._stream.send(parts)
        except OSError as broken:
            raise ChannelClosed(f"the worker stopped reading: {broken}") from broken

    def next_frame(self, awaited: int = 0) -> bytes | bytearray | None:
        """The next frame's payload, or None until more has come.

        ``awaited`` is how many bytes it should have, where the caller knows: memory for a large frame is taken at once
        when its header says the same, and otherwise only as its bytes arrive.

        Raises:
            FrameTooLarge: its header passes the limit.
            ChannelClosed: all that had come is taken, and no more will.

        """
        frame = self._whole_large() if self._large is not None else self._decoder.next_frame()
        if frame is not None:
            return frame
        if self._closed is not None:
            raise self._closed
        if awaited >= _LARGE_FRAME and self._large is None and (begun := self._decoder.hand_over(awaited)) is not None:
            self._large, self._filled = bytearray(awaited), len(begun)
            self._large[: len(begun)] = begun
        return None

    async def receive(self) -> bytes:
        """Wait for the next frame; for the handshake alone, where there is nobody to be called yet.

        Raises:
            FrameTooLarge, ChannelClosed: as ``next_frame``.

        """
        heard = asyncio.Event()
        self.attach(heard.set)
        try:
            while (frame := self.next_frame()) is None:
                await heard.wait()
                heard.clear()
        finally:
            self.attach(_ignore)
        return bytes(frame)

    def room(self) -> int | memoryview:
        """As ``Receiver``."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return max(_LEAST_READ, min(self._decoder.wanted_bytes, _LARGEST_READ))

    def arrived(self, data: bytes) -> None:
        """As ``Receiver``."""
        self._decoder.feed(data)
        self._heard()

    def filled(self, count: int) -> None:
        """As ``Receiver``."""
        self._filled += count
        if self._large is not None and self._filled == len(self._large):
            self._heard()

    def ended(self, problem: OSError | None) -> None:
        """As ``Receiver``."""
        unfinished = self.pending_bytes if self._large is None else self._filled
        cut = f" after {unfinished} bytes of an unfinished frame" if unfinished else ""
        said = f"the worker closed the connection{cut}" if problem is None else f"the connection broke: {problem}"
        self._closed = ChannelClosed(said)
        self._heard()

    def stop(self) -> None:
        """Hear nothing any more; what the worker still says is left unread."""
        self._stream.stop()

    def close(self) -> None:
        """Give the connection up; safe to call twice."""
        self._stream.close()

    def _whole_large(self) -> bytearray | None:
        if self._large is None or self._filled < len(self._large):
            return None
        whole, self._large = self._large, None
        return whole


def _ignore() -> None:
    """Nobody listens."""
