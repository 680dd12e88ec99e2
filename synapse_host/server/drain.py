"""Counts admitted requests so that a stopping host can wait for them and refuse new ones."""

from __future__ import annotations

import anyio

from synapse_host.errors import QueueFull

#: A stopped host needs about this long to be back.
_RETRY_AFTER_MS = 1000


class Drain:
    """The host's open requests; ``started`` once it stops taking new ones."""

    def __init__(self) -> None:
        self.started = False
        self.open_requests = 0
        self._empty = anyio.Event()

    def enter(self) -> None:
        """Admit one request.

        Raises:
            QueueFull: the host is stopping.

        """
        if self.started:
            raise QueueFull(
                "the host is stopping and takes no new requests; send it again when the host is back",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        self.open_requests += 1

    def leave(self) -> None:
        """One admitted request is answered or given up."""
        self.open_requests -= 1
        if self.started and not self.open_requests:
            self._empty.set()

    def start(self) -> None:
        """Admit nothing from now on."""
        self.started = True
        if not self.open_requests:
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until every admitted request is answered; call after ``start``."""
        await self._empty.wait()
