"""The listening socket of one worker, and the accepted connection as a stream of bytes.

Plain non-blocking sockets on the running asyncio loop: a request and its reply cross this file twice. A write that the
kernel takes at once costs one system call and no turn of the loop, a reply one turn and no task to wake for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from synapse_host.framing import Buffer, unsent
from synapse_host.worker_protocol.channel import Receiver


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
        self._receiver: Receiver | None = None
        self._unsent: list[memoryview] = []

    def start(self, receiver: Receiver) -> None:
        """Tell ``receiver`` of everything from now on."""
        self._receiver = receiver
        # The loop is given a number: of a socket it would write out the addresses for a message nobody sees.
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write every part in order, at once what the socket takes; raises ``OSError`` when the peer is gone."""
        if self._unsent:
            self._unsent += map(memoryview, parts)
        elif rest := self._send_now(parts):
            self._unsent = rest
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._write)

    @property
    def sending(self) -> bool:
        """Whether something given to ``send`` is still to be written."""
        return bool(self._unsent)

    def shut_reading(self) -> None:
        """Let the stream end after what has arrived, whoever else may still hold the other side open."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def stop(self) -> None:
        """Tell of nothing any more and write nothing any more."""
        self._receiver = None
        self._unsent = []
        if (descriptor := self._socket.fileno()) >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(descriptor)
            loop.remove_writer(descriptor)

    def close(self) -> None:
        """Give the connection up; safe to call twice."""
        self.stop()
        self._socket.close()

    def _read(self) -> None:
        # One read a turn: a peer that never stops sending must not keep the loop from its other tasks.
        receiver = self._receiver
        assert receiver is not None
        room = receiver.room()
        try:
            if isinstance(room, int):
                data = self._socket.recv(room)
                count = len(data)
            else:
                count = self._socket.recv_into(room)
        except BlockingIOError:
            return
        except OSError as problem:
            self._end(problem)
            return
        if not count:
            self._end(None)
        elif isinstance(room, int):
            receiver.arrived(data)
        else:
            receiver.filled(count)

    def _write(self) -> None:
        try:
            self._unsent = self._send_now(self._unsent)
        except OSError as problem:
            self._end(problem)
            return
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._socket.fileno())

    def _end(self, problem: OSError | None) -> None:
        receiver = self._receiver
        self.stop()
        if receiver is not None:
            receiver.ended(problem)

    def _send_now(self, parts: Sequence[Buffer]) -> list[memoryview]:
        """What is left of ``parts``, in order."""
        try:
            sent = self._socket.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        return unsent(parts, sent)


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
