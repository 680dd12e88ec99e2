"""What garbage collection does with each blob. Pure.

Two phases: a blob nobody pins is marked first and goes in a later collection, once the grace is over. Whoever read its
digest a moment ago has that long to take a lease or a pin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from synapse_host.cache.metadata import BlobMetadata
from synapse_host.cache.pin_owners import belongs_to
from synapse_host.values import value_object

KeptReason = Literal[
    "pinned_by_requesting_module", "pinned_by_foreign_module", "shared_reader_or_gc_active", "missing_metadata"
]


@value_object
class Keep:
    """The blob stays."""

    reason: KeptReason


@value_object
class Mark:
    """The blob is to be marked at ``marked_ms`` and may go from ``delete_after_ms`` on."""

    marked_ms: int
    delete_after_ms: int


@value_object
class Delete:
    """The blob goes now."""


Verdict = Keep | Mark | Delete


def judge(metadata: BlobMetadata, *, owner: str, now_ms: int, grace_ms: int) -> Verdict:
    """What a collection asked for by ``owner`` does with one blob. Times are milliseconds of the epoch.

    A mark from the future, as a clock set back leaves it, begins its grace anew.
    """
    if metadata.pins:
        own = any(belongs_to(pin, owner) for pin in metadata.pins)
        return Keep("pinned_by_requesting_module" if own else "pinned_by_foreign_module")
    stone = metadata.tombstone
    if stone is None or stone.marked_ms > now_ms:
        return Mark(now_ms, now_ms + grace_ms)
    due = stone.marked_ms + grace_ms
    return Delete() if now_ms >= due else Mark(stone.marked_ms, due)


@value_object
class CacheEntry:
    """A blob as the watermark sees it: its bytes, when it was last read, and whether anybody pins it."""

    digest: str
    size: int
    last_used_ms: int
    pinned: bool


def over_watermark(entries: Sequence[CacheEntry], limit_bytes: int) -> list[str]:
    """The digests to give up, least recently used first, until the rest takes ``limit_bytes`` or is all pinned."""
    excess = sum(entry.size for entry in entries) - limit_bytes
    victims: list[str] = []
    for entry in sorted(entries, key=lambda entry: (entry.last_used_ms, entry.digest)):
        if excess <= 0:
            break
        if not entry.pinned:
            victims.append(entry.digest)
            excess -= entry.size
    return victims
