"""What the cache leaves free of its disk: room for the store to write down what becomes of its jobs.

A body whose size nobody knows would otherwise be written until the disk is full, for every program on it.
"""

from __future__ import annotations

import errno
import os

from synapse_host.values import value_object

#: Bytes to leave free, and the part of a disk that is less: room for the store and its journal to grow by a job.
RESERVE_BYTES = 64 * 1024 * 1024
_RESERVE_PART = 20


@value_object
class DiskRoom:
    """A disk as this user sees it: bytes free, and bytes in all."""

    free: int
    total: int

    @property
    def reserve(self) -> int:
        """The bytes that stay free."""
        return min(RESERVE_BYTES, self.total // _RESERVE_PART)

    def fault(self, wanted: int | None) -> OSError | None:
        """Why ``wanted`` more bytes have no room, None where they have; None wants what nobody knows the size of."""
        if self.free - (wanted or 0) >= self.reserve:
            return None
        size = "what comes, of a size nobody tells," if wanted is None else f"the next {wanted} bytes"
        return OSError(
            errno.ENOSPC,
            f"the disk has {self.free} bytes free; {size} would leave fewer than the {self.reserve} kept for the store",
        )


def room_of(descriptor: int) -> DiskRoom:
    """The disk of an open file; raises ``OSError``."""
    facts = os.fstatvfs(descriptor)
    return DiskRoom(facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)
