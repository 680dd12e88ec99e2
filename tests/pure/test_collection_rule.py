"""Which blobs a collection keeps, marks and removes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.cache.collection_rule import CacheEntry, Delete, Keep, Mark, judge, over_watermark
from synapse_host.cache.metadata import BlobMetadata, Tombstone

BLOB = BlobMetadata("0" * 64, 10, "https://example.org/a")
NOW, GRACE = 1_000_000, 60_000


@pytest.mark.parametrize(
    ("pins", "marked_ms", "expected"),
    [
        (("me",), None, Keep("pinned_by_requesting_module")),
        (("me", "you"), None, Keep("pinned_by_requesting_module")),
        (("you",), None, Keep("pinned_by_foreign_module")),
        (("you",), 0, Keep("pinned_by_foreign_module")),
        ((), None, Mark(NOW, NOW + GRACE)),
        ((), NOW, Mark(NOW, NOW + GRACE)),
        ((), NOW - GRACE + 1, Mark(NOW - GRACE + 1, NOW + 1)),
        ((), NOW - GRACE, Delete()),
        ((), NOW + 1, Mark(NOW, NOW + GRACE)),
    ],
)
def test_pins_then_marks_then_grace(pins: tuple[str, ...], marked_ms: int | None, expected: object) -> None:
    stone = None if marked_ms is None else Tombstone(marked_ms, "someone")
    blob = replace(BLOB, pins=pins, tombstone=stone)
    assert judge(blob, owner="me", now_ms=NOW, grace_ms=GRACE) == expected


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5), st.booleans()), max_size=12), st.integers(0, 3000))
def test_the_watermark_gives_up_the_oldest_unpinned_and_no_more_than_needed(
    rows: list[tuple[int, int, bool]], limit: int
) -> None:
    entries = [CacheEntry(f"{place:064x}", *row) for place, row in enumerate(rows)]
    victims = over_watermark(entries, limit)
    chosen = [entry for entry in entries if entry.digest in victims]
    left = sum(entry.size for entry in entries) - sum(entry.size for entry in chosen)
    assert not any(entry.pinned for entry in chosen)
    assert left <= limit or all(entry.pinned for entry in entries if entry.digest not in victims)
    if victims:
        last = next(entry for entry in entries if entry.digest == victims[-1])
        assert left + last.size > limit
        older = [entry for entry in entries if entry.last_used_ms < last.last_used_ms and not entry.pinned]
        assert {entry.digest for entry in older} <= set(victims)
