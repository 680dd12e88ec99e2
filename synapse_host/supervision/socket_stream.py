"""The listening socket of one worker, and the accepted connection as a stream of bytes.

Plain non-blocking sockets on the running asyncio loop: a request and its reply cross this file twice, and a write
that the kernel takes at once costs one system call and no turn of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from synapse_host.worker_protocol.channel import Buffer


class WorkerListener:
    """Listens at ``path`` for the one connection of one worker; the file is gone once it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(path))
            path.chmod(0o600)
            self._socket.listen(1)
        except OSError:
            self.close()
            raise

    async def accept(self) -> SocketStream:
        """The worker's connection."""
        while True:
            await readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                connection, _ = self._socket.accept()
                return SocketStream(connection)

    def close(self) -> None:
        """Stop listening and remove the file."""
        self._socket.close()
        self._path.unlink(missing_ok=True)


class SocketStream:
    """A ``channel.ByteStream`` over ``connection``, which it owns."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection

    def send_now(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """Write what the socket takes at once; what is left, in order. Raises ``OSError`` when the peer is gone."""
        try:
            sent = self._socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        rest = []
        for part in parts:
            if sent < len(part):
                rest.append(memoryview(part)[sent:])
            sent = max(0, sent - len(part))
        return rest

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Write every part, in order; raises ``OSError`` when the peer is gone."""
        loop = asyncio.get_running_loop()
        for part in self.send_now(parts):
            await loop.sock_sendall(self._socket, part)

    async def receive(self, max_bytes: int) -> bytes:
        """Between one byte and ``max_bytes``, or none at the end; raises ``OSError`` when the connection breaks."""
        while True:
            # Waiting comes first: a peer that never stops sending must not keep the loop from its other tasks.
            await readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv(max_bytes)

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill some of ``buffer``; how many bytes, none at the end. Raises ``OSError`` when the connection breaks."""
        while True:
            await readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv_into(buffer)

    def shut_reading(self) -> None:
        """Let reads end after what has arrived, whoever else may still hold the other side open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Give the connection up; safe to call twice."""
        self._socket.close()


async def readable(source: socket.socket | int) -> None:
    """Wait until a socket or descriptor has something to read, or its end."""
    # Waiting and reading are apart so that a cancelled wait can lose neither bytes nor a connection.
    # The loop is given a number: of a socket it would write out the addresses, twice a wait, for a message nobody sees.
    descriptor = source if isinstance(source, int) else source.fileno()
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
