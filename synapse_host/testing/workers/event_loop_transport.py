"""A second transport for workers: asyncio's own transports and protocols instead of sockets that are read directly.

Windows gives a program its named pipes in exactly this shape (``ProactorEventLoop.start_serving_pipe``), so what runs
over this one asks nothing of a connection that a pipe could not give. The address is a Unix socket here, because that
is what the worker's side connects to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from synapse_host.framing import Buffer
from synapse_host.worker_protocol.channel import Receiver


class LoopStream(asyncio.Protocol):
    """A ``supervision.transport.WorkerStream`` over one asyncio transport."""

    def __init__(self, connected: asyncio.Future[LoopStream]) -> None:
        self._connected = connected
        self._transport: Any = None
        self._receiver: Receiver | None = None
        self._gone = False

    # --- what asyncio calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is read before somebody listens."""
        self._transport = transport
        self._transport.pause_reading()
        if not self._connected.done():
            self._connected.set_result(self)

    def data_received(self, data: bytes) -> None:
        """Hand over what came, in pieces where the receiver gives memory to fill."""
        rest = memoryview(data)
        while rest and (receiver := self._receiver) is not None:
            room = receiver.room()
            if isinstance(room, int):
                receiver.arrived(bytes(rest))
                return
            count = min(len(room), len(rest))
            room[:count] = rest[:count]
            rest = rest[count:]
            receiver.filled(count)

    def eof_received(self) -> bool:
        """The end, in order."""
        self._end(None)
        return False

    def connection_lost(self, problem: Exception | None) -> None:
        """The end, in whatever order."""
        self._gone = True
        self._end(problem if isinstance(problem, OSError) else None)

    # --- what supervision calls --------------------------------------------------------------------------------

    def start(self, receiver: Receiver) -> None:
        """As ``ByteStream``."""
        self._receiver = receiver
        self._transport.resume_reading()

    def send(self, parts: Sequence[Buffer]) -> None:
        """As ``ByteStream``."""
        if self._gone or self._transport.is_closing():
            raise BrokenPipeError("the worker's end is closed")
        self._transport.writelines([bytes(part) for part in parts])

    @property
    def sending(self) -> bool:
        """As ``ByteStream``."""
        return bool(self._transport.get_write_buffer_size())

    def shut_reading(self) -> None:
        """As ``WorkerStream``; told in a turn of its own, after what has been read."""
        asyncio.get_running_loop().call_soon(self._end, None)

    def stop(self) -> None:
        """As ``ByteStream``."""
        self._receiver = None
        with contextlib.suppress(RuntimeError):
            self._transport.pause_reading()

    def close(self) -> None:
        """As ``ByteStream``."""
        self._receiver = None
        self._transport.abort()

    def _end(self, problem: OSError | None) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended(problem)


class LoopListener:
    """A ``supervision.transport.Listener`` whose connections are ``LoopStream``; ``accepted`` counts them."""

    accepted = 0

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._server: asyncio.Server | None = None

    async def accept(self) -> LoopStream:
        """As ``Listener``."""
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[LoopStream] = loop.create_future()
        self._server = await loop.create_unix_server(lambda: LoopStream(connected), sock=self._socket)
        stream = await connected
        type(self).accepted += 1
        return stream

    def close(self) -> None:
        """As ``Listener``."""
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self._path.unlink(missing_ok=True)
