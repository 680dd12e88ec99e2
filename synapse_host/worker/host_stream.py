"""What a worker's connection to its host is made of: a blocking stream of bytes, of which Unix sockets are one.

The counterpart of ``supervision.transport`` at the worker's end. Another transport, such as a named pipe, is a class
with these four methods and a ``Connect`` that opens it at the address of ``--socket``, given to ``main`` of the worker.
"""

from __future__ import annotations

import select
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from synapse_host.framing import unsent


class HostStream(Protocol):
    """The connected host. One thread reads, another may wait for the end; sends come one at a time."""

    def read(self, most: int) -> bytes:
        """What has come, ``most`` bytes of it at most, waiting for some; empty once the host is gone in any way."""

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send every byte of ``parts`` in their order; raises ``OSError`` once the host is gone."""

    def wait_for_end(self) -> None:
        """Return when the host has closed its end, whatever of what it sent is still unread."""

    def close(self) -> None:
        """Give the connection up."""


#: Connects to the host that listens at an address; raises ``OSError`` when none does.
Connect: TypeAlias = Callable[[str], HostStream]


class SocketStream:
    """A ``HostStream`` over a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    @classmethod
    def connect(cls, path: str) -> SocketStream:
        """Connect to the Unix socket at ``path``; raises ``OSError`` when no host listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError:
            sock.close()
            raise
        return cls(sock)

    def read(self, most: int) -> bytes:
        """As ``HostStream``."""
        try:
            return self._socket.recv(most)
        except ConnectionResetError:
            return b""

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """As ``HostStream``; what the kernel takes of all parts goes out in one call."""
        for rest in unsent(parts, self._socket.sendmsg(parts)):
            self._socket.sendall(rest)

    def wait_for_end(self) -> None:
        """As ``HostStream``."""
        _wait_for_end(self._socket.fileno())

    def close(self) -> None:
        """As ``HostStream``."""
        self._socket.close()


if sys.platform == "darwin":

    def _wait_for_end(descriptor: int) -> None:
        with select.kqueue() as queue:
            watched = [select.kevent(descriptor, select.KQ_FILTER_READ, select.KQ_EV_ADD | select.KQ_EV_CLEAR)]
            while not any(event.flags & select.KQ_EV_EOF for event in queue.control(watched, 1)):
                watched = []

else:

    def _wait_for_end(descriptor: int) -> None:
        watch = select.poll()
        watch.register(descriptor, select.POLLRDHUP)
        watch.poll()
