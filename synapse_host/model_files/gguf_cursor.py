"""Reads a file from front to back by position, and never past its end or past a bound. Standard library only."""

from __future__ import annotations

import os
import struct
from typing import Any

#: Bytes read at once; a header is read in a few of them.
_WINDOW = 1024 * 1024


class GgufFault(ValueError):
    """The file is not a whole, consistent GGUF file; the message holds the numbers that disagree."""


class Cursor:
    """A place in an open file of ``size`` bytes; every method moves it forward."""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._window = b""
        self._window_start = 0
        self.position = 0

    def require(self, count: int, what: str) -> None:
        """Raise ``GgufFault`` unless ``count`` bytes are left."""
        left = self._size - self.position
        if count > left:
            raise GgufFault(
                f"{what} need {count} bytes at byte {self.position} and the file has {left} left; "
                "fetch the file again from where it was published"
            )

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        begin = self.position - self._window_start
        end = begin + count
        if end > len(self._window):
            self.require(count, "the next bytes")
            self._fill(count)
            begin, end = 0, count
        self.position += count
        return self._window[begin:end]

    def number(self, code: str) -> Any:
        """The next little-endian number, by its ``struct`` code."""
        form = f"<{code}"
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self, most: int) -> bytes:
        """The next string, which is its length as u64 and that many bytes; at most ``most`` of them."""
        (length,) = _LENGTH.unpack(self.take(8))
        if length > most:
            raise GgufFault(
                f"a string at byte {self.position} claims {length} bytes, more than the {most} it may have; "
                "fetch the file again from where it was published"
            )
        return self.take(length)

    def skip(self, count: int, what: str) -> None:
        """Leave out the next ``count`` bytes, which must be there."""
        self.require(count, what)
        self.position += count

    def _fill(self, count: int) -> None:
        parts: list[bytes] = []
        have = 0
        while have < count:
            part = os.pread(self._fd, max(count - have, _WINDOW), self.position + have)
            if not part:
                raise GgufFault(f"the file ends at byte {self.position + have}; fetch it again")
            parts.append(part)
            have += len(part)
        self._window = b"".join(parts)
        self._window_start = self.position


_LENGTH = struct.Struct("<Q")
