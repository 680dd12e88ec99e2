"""Length-prefixed frames, the carriage of both protocols: u32 little-endian length, then that many bytes.

Sans-I/O: bytes in, frames out. Buffers grow as bytes arrive, never by what a header claims.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

_HEADER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size

#: Bytes on their way out; a view is one of single bytes.
Buffer = bytes | bytearray | memoryview


class FrameTooLarge(ValueError):
    """A frame is longer than the limit of its connection; carries both numbers."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"frame of {length} bytes passes the limit of {limit} bytes; send smaller frames")
        self.length = length
        self.limit = limit


def frame_header(length: int, limit: int) -> bytes:
    """The four header bytes for a payload of ``length``; raises ``FrameTooLarge`` past ``limit``."""
    if length > limit:
        raise FrameTooLarge(length, limit)
    return _HEADER.pack(length)


def unsent(parts: Sequence[Buffer], sent: int) -> list[memoryview]:
    """What is left of ``parts``, in order, when ``sent`` bytes of them are gone."""
    if sent == sum(map(len, parts)):
        # Nearly always: the socket took all there was.
        return []
    rest = []
    for part in parts:
        if sent < len(part):
            rest.append(memoryview(part)[sent:])
        sent = max(0, sent - len(part))
    return rest


class FrameDecoder:
    """Turns received bytes into whole frames.

    ``limit`` is the largest payload in bytes; it may be lowered once, after a handshake. After ``FrameTooLarge`` the
    decoder is spent: the connection has lost its frame boundaries and must close.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._chunks: deque[bytes] = deque()
        #: Bytes of the first chunk that are taken.
        self._taken = 0
        self._available = 0
        self._expected: int | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes held that do not yet make a whole frame."""
        return self._available

    @property
    def wanted_bytes(self) -> int:
        """How many more bytes complete the header or payload in progress."""
        target = HEADER_BYTES if self._expected is None else self._expected
        return max(0, target - self._available)

    def feed(self, data: bytes) -> None:
        """Take received bytes."""
        if data:
            self._chunks.append(data)
            self._available += len(data)

    def next_frame(self) -> bytes | None:
        """The next whole payload, or None until more bytes arrive; raises ``FrameTooLarge``."""
        if self._expected is None:
            if self._available < HEADER_BYTES:
                return None
            (length,) = self._take_header()
            if length > self.limit:
                raise FrameTooLarge(length, self.limit)
            self._expected = length
        if self._available < self._expected:
            return None
        length, self._expected = self._expected, None
        return self._take(length)

    def take_rest(self) -> bytes:
        """Hand over every byte held; for a caller that receives the next frame itself. Only between frames."""
        return self._take(self._available)

    def hand_over(self, length: int) -> bytes | None:
        """The first bytes of the payload in progress where it is one of ``length`` bytes; None elsewhere.

        For a caller that receives the rest of it itself; the decoder then waits for the next header. Call it only
        after ``next_frame`` returned None.
        """
        if self._expected != length:
            return None
        self._expected = None
        return self._take(self._available)

    def _take_header(self) -> tuple[int]:
        chunk, start = self._chunks[0], self._taken
        if start + HEADER_BYTES < len(chunk):
            # Where the header is not the last of its chunk, as nearly always, nothing has to be cut out.
            self._taken = start + HEADER_BYTES
            self._available -= HEADER_BYTES
            return _HEADER.unpack_from(chunk, start)
        return _HEADER.unpack(self._take(HEADER_BYTES))

    def _take(self, count: int) -> bytes:
        self._available -= count
        if self._chunks and (end := self._taken + count) <= len(self._chunks[0]):
            start, self._taken = self._taken, end
            if end < len(self._chunks[0]):
                return self._chunks[0][start:end]
            self._taken = 0
            return self._chunks.popleft()[start:]
        parts: list[bytes] = []
        while count:
            part = self._chunks.popleft()[self._taken :]
            self._taken = 0
            if len(part) > count:
                self._chunks.appendleft(part)
                part, self._taken = part[:count], count
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
