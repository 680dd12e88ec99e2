"""One output stream of a child, read without blocking on the running asyncio loop.

The event loop's own pipes stay open for as long as anyone holds the other end, a process the child set apart
included; this one is closed when its reader says so.
"""

from __future__ import annotations

import contextlib
import os

from synapse_host.supervision.socket_stream import readable

#: Bytes taken at once; a pipe holds no more by default.
_READ_BYTES = 64 * 1024


class OutputPipe:
    """A pipe whose ``write_end`` is for a child and whose other end is read here."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._open = [self._read_end, self.write_end]

    async def read(self) -> bytes:
        """What the child has written, or none once every writer is gone."""
        while True:
            # Waiting comes first: a child that never stops printing must not keep the loop from its other tasks.
            await readable(self._read_end)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._read_end, _READ_BYTES)

    def close_write_end(self) -> None:
        """Keep no writing end here, so that the end of the child's is seen."""
        self._close(self.write_end)

    def close(self) -> None:
        """Close what is still open; safe to call twice."""
        for descriptor in (*self._open,):
            self._close(descriptor)

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            os.close(descriptor)
