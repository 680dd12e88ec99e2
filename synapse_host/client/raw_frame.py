"""The raw frame after a reply, received into the memory it stays in. Pure.

Joining the pieces of a 16 MiB frame costs as long as receiving them; here a transport may read straight into place.
The size is the host's word, which a client may trust where a host may not trust its clients.
"""

from __future__ import annotations

from synapse_host.client.faults import ReplyMismatch
from synapse_host.framing import HEADER_BYTES


class RawFrame:
    """One announced frame of ``rows`` by ``dims`` f32, being received."""

    def __init__(self, rows: int, dims: int, *, limit: int) -> None:
        self._announced = f"{rows} rows of {dims} numbers"
        self._size = rows * dims * 4
        if self._size > limit:
            raise ReplyMismatch(f"{self._announced} were announced, which pass the frame limit of {limit} bytes")
        self._header = b""
        self._filled = 0
        #: The vectors, whole once ``complete``.
        self.data = bytearray(self._size)

    @property
    def complete(self) -> bool:
        """Whether every byte is there."""
        return len(self._header) == HEADER_BYTES and self._filled == self._size

    def space(self) -> memoryview | None:
        """Where the next bytes go; None while the header is still to come."""
        return memoryview(self.data)[self._filled :] if len(self._header) == HEADER_BYTES else None

    def filled(self, count: int) -> None:
        """``count`` bytes were written to ``space``."""
        self._filled += count

    def feed(self, data: bytes) -> bytes:
        """Take received bytes; what is left of them belongs to the next frame.

        Raises:
            ReplyMismatch: the frame's header does not say what was announced.

        """
        missing = HEADER_BYTES - len(self._header)
        if missing:
            self._header += data[:missing]
            data = data[missing:]
            self._check_header()
        taken = data[: self._size - self._filled]
        self.data[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)
        return data[len(taken) :]

    def _check_header(self) -> None:
        length = int.from_bytes(self._header, "little")
        if len(self._header) == HEADER_BYTES and length != self._size:
            raise ReplyMismatch(f"{self._announced} were announced and {length} bytes come; open a new connection")
