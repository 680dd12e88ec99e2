"""What a worker connection is made of, as far as supervision is concerned: a listener and a stream of bytes.

Unix sockets are the one transport today (``socket_stream``). Another, such as a named pipe, is a listener with these
two methods, named in ``WorkerSpec.listen``, and its counterpart at the worker's end (``worker.host_stream``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from synapse_host.worker_protocol.channel import ByteStream


class WorkerStream(ByteStream, Protocol):
    """The accepted connection of one worker."""

    def shut_reading(self) -> None:
        """Let the stream end after what has arrived, whoever else may still hold the other side open."""


class Listener(Protocol):
    """Waits at an address for the one connection of one worker."""

    async def accept(self) -> WorkerStream:
        """The worker's connection; it may be cancelled while it waits."""

    def close(self) -> None:
        """Stop listening and leave nothing of the address behind."""


#: Begins to listen at an address, the ``--socket`` of the worker; raises ``OSError`` where that cannot be.
Listen: TypeAlias = Callable[[Path], Listener]
