"""A third transport, with no socket at either end: two named pipes of Unix, one each way.

``PipeListener`` is the host's end, ``PipeStream`` the worker's.
``python -m synapse_host.testing.workers.pipe_transport BACKEND --socket PATH --nonce N`` is the very worker of
``python -m synapse_host.worker``, connected over them.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synapse_host.testing.workers.event_loop_transport import LoopStream
from synapse_host.worker import __main__ as worker_program


def _ends(path: str) -> tuple[str, str]:
    """Names of the pipes to the worker and to the host."""
    return f"{path}.down", f"{path}.up"


class PipeStream:
    """A ``worker.host_stream.HostStream`` over two pipes."""

    def __init__(self, path: str) -> None:
        down, up = _ends(path)
        # Without waiting: the host opens its end for writing once this one is there.
        self._reading = os.open(down, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._writing = os.open(up, os.O_WRONLY | os.O_CLOEXEC)

    def read(self, most: int) -> bytes:
        """As ``HostStream``."""
        while True:
            self._poll(select.POLLIN)
            try:
                return os.read(self._reading, most)
            except BlockingIOError:
                continue

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """As ``HostStream``."""
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[os.write(self._writing, rest) :]

    def wait_for_end(self) -> None:
        """As ``HostStream``."""
        self._poll(0)

    def close(self) -> None:
        """As ``HostStream``."""
        os.close(self._reading)
        os.close(self._writing)

    def _poll(self, events: int) -> None:
        # A hang-up is always told, and only where there has been a host.
        watch = select.poll()
        watch.register(self._reading, events)
        watch.poll()


class _BothWays:
    """What ``LoopStream`` asks of one asyncio transport, of two that go one way each."""

    def __init__(self, reading: asyncio.ReadTransport, writing: asyncio.WriteTransport) -> None:
        self.pause_reading, self.resume_reading = reading.pause_reading, reading.resume_reading
        self.writelines, self.get_write_buffer_size = writing.writelines, writing.get_write_buffer_size
        self.is_closing = writing.is_closing
        self._reading, self._writing = reading, writing

    def abort(self) -> None:
        """Give both up."""
        self._reading.close()
        # Not twice: asyncio's transport for pipes forgets its loop when it closes.
        if not self._writing.is_closing():
            self._writing.abort()


class _Reading(asyncio.Protocol):
    """Hands to a ``LoopStream`` what comes."""

    def __init__(self, stream: LoopStream, writing: asyncio.WriteTransport) -> None:
        self._stream, self._writing = stream, writing

    def data_received(self, data: bytes) -> None:
        self._stream.data_received(data)

    def eof_received(self) -> bool:
        return self._stream.eof_received()

    def connection_made(self, transport: Any) -> None:
        self._stream.connection_made(_BothWays(transport, self._writing))  # type: ignore[arg-type]

    def connection_lost(self, problem: Exception | None) -> None:
        self._stream.connection_lost(problem)


class PipeListener:
    """A ``supervision.transport.Listener`` over two pipes; ``accepted`` counts its connections."""

    accepted = 0

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._down, self._up = _ends(str(path))
        for name in (self._down, self._up):
            os.mkfifo(name, 0o600)
        self._reading: int | None = os.open(self._up, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    async def accept(self) -> LoopStream:
        """As ``Listener``; a worker is there once it has said something."""
        loop, connected = asyncio.get_running_loop(), asyncio.Event()
        assert self._reading is not None
        loop.add_reader(self._reading, connected.set)
        try:
            await connected.wait()
        finally:
            loop.remove_reader(self._reading)
        sending = os.fdopen(os.open(self._down, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), "wb", 0)
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, sending)
        stream = LoopStream(loop.create_future())
        receiving, self._reading = os.fdopen(self._reading, "rb", 0), None
        await loop.connect_read_pipe(lambda: _Reading(stream, writing), receiving)
        type(self).accepted += 1
        return stream

    def close(self) -> None:
        """As ``Listener``."""
        if self._reading is not None:
            os.close(self._reading)
            self._reading = None
        for name in (self._down, self._up):
            Path(name).unlink(missing_ok=True)


if __name__ == "__main__":
    status = worker_program.main(PipeStream)
    sys.stdout.flush()
    sys.stderr.flush()
    # As the worker itself ends, and for its reason.
    os._exit(status)
