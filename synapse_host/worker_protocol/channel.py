"""The host's end of a worker connection: whole frames in and out, over any stream of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from synapse_host.framing import FrameDecoder, frame_header

#: Least and largest read in bytes; between them a read asks for what completes the frame in progress.
_LEAST_READ = 64 * 1024
_LARGEST_READ = 1024 * 1024

#: An awaited frame of this many bytes is received in one piece of memory. Joined from the pieces it came in it takes
#: twice its size, which the allocator then gives back to the system and asks for again with every reply.
_LARGE_FRAME = 1024 * 1024

Buffer = bytes | bytearray | memoryview


class ChannelClosed(Exception):
    """The worker's end of the connection is gone; the message says whether a frame was cut short."""


class ByteStream(Protocol):
    """What carries the bytes. Both calls raise ``OSError`` when the connection breaks."""

    def send_now(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """Write what can be written without waiting; what is left, in order."""

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Write every part, in order."""

    async def receive(self, max_bytes: int) -> bytes:
        """Between one byte and ``max_bytes``, or none at the end of the stream."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill some of ``buffer`` from its beginning; how many bytes, none at the end of the stream."""

    def close(self) -> None:
        """Give the connection up; safe to call twice."""


class WorkerChannel:
    """Frames over ``stream``, each at most ``max_frame`` bytes. One sender and one receiver at a time."""

    def __init__(self, stream: ByteStream, max_frame: int) -> None:
        self._stream = stream
        self._max_frame = max_frame
        self._decoder = FrameDecoder(max_frame)

    @property
    def max_frame(self) -> int:
        """The largest payload in bytes, either way."""
        return self._max_frame

    @property
    def pending_bytes(self) -> int:
        """Bytes received that no one has taken as a frame."""
        return self._decoder.pending_bytes

    def lower_max_frame(self, max_frame: int) -> None:
        """Take the negotiated frame size."""
        self._max_frame = self._decoder.limit = max_frame

    async def send(self, payload: bytes, raw: Buffer | None = None) -> None:
        """Send a control frame and, when given, the raw frame that belongs to it, which is not copied.

        Raises:
            FrameTooLarge: before anything was sent.
            ChannelClosed: the worker no longer reads.

        """
        await self.finish_send(self.start_send(payload, raw))

    def start_send(self, payload: bytes, raw: Buffer | None = None) -> list[memoryview]:
        """As much of ``send`` as needs no waiting; ``finish_send`` takes the rest."""
        control = frame_header(len(payload), self._max_frame) + payload
        parts: list[Buffer] = [control]
        if raw is not None:
            view = memoryview(raw).cast("B")
            parts = [control + frame_header(view.nbytes, self._max_frame), view]
        try:
            return self._stream.send_now(parts)
        except OSError as broken:
            raise ChannelClosed(f"the worker stopped reading: {broken}") from broken

    async def finish_send(self, rest: Sequence[Buffer]) -> None:
        """Send what ``start_send`` left; raises ``ChannelClosed``."""
        if not rest:
            return
        try:
            await self._stream.send(rest)
        except OSError as broken:
            raise ChannelClosed(f"the worker stopped reading: {broken}") from broken

    async def receive(self, awaited: int = 0) -> bytes | bytearray:
        """The next frame's payload; raises ``ChannelClosed`` or ``FrameTooLarge``.

        ``awaited`` is how many bytes it should have, where the caller knows: memory for a large frame is taken at once
        when its header says the same, and otherwise only as its bytes arrive.
        """
        while (frame := self._decoder.next_frame()) is None:
            begun = self._decoder.hand_over(awaited) if awaited >= _LARGE_FRAME else None
            if begun is not None:
                return await self._receive_large(awaited, begun)
            self._decoder.feed(await self._read())
        return frame

    async def _receive_large(self, length: int, begun: bytes) -> bytearray:
        payload, filled = bytearray(length), len(begun)
        payload[:filled] = begun
        while filled < length:
            with memoryview(payload) as view, view[filled:] as rest:
                try:
                    count = await self._stream.receive_into(rest)
                except OSError as broken:
                    raise ChannelClosed(f"the connection to the worker broke: {broken}") from broken
            if not count:
                raise ChannelClosed(f"the worker closed the connection after {filled} bytes of an unfinished frame")
            filled += count
        return payload

    async def _read(self) -> bytes:
        wanted = max(_LEAST_READ, min(self._decoder.wanted_bytes, _LARGEST_READ))
        try:
            data = await self._stream.receive(wanted)
        except OSError as broken:
            raise ChannelClosed(f"the connection to the worker broke: {broken}") from broken
        if not data:
            cut = f" after {self.pending_bytes} bytes of an unfinished frame" if self.pending_bytes else ""
            raise ChannelClosed(f"the worker closed the connection{cut}")
        return data

    def close(self) -> None:
        """Give the connection up; safe to call twice."""
        self._stream.close()
