"""A host-wide limit on half-received requests. Pure.

Without it every connection could hold one frame short of its last byte. Buffers grow with the bytes that arrive, never
by what a header announces, so the limit is counted in bytes really held.
"""

from __future__ import annotations

from synapse_host.errors import QueueFull


class IngressBudget:
    """Bytes all connections together may hold of frames that are not complete yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[int, int] = {}
        self._total = 0

    @property
    def held(self) -> int:
        """Bytes held now."""
        return self._total

    def hold(self, connection: int, size: int) -> None:
        """Set what one connection holds.

        Raises:
            QueueFull: the sum would pass the limit; what the connection held before is still counted.

        """
        total = self._total - self._held.get(connection, 0) + size
        if size and total > self.limit:
            raise QueueFull(
                f"{total} bytes of unfinished requests would pass the host's limit of {self.limit}; "
                "send them again when others are done",
                channel=True,
            )
        if size:
            self._held[connection] = size
        else:
            self._held.pop(connection, None)
        self._total = total

    def release(self, connection: int) -> None:
        """Forget a closed connection."""
        self.hold(connection, 0)
