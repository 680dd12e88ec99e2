"""Pages as they are written, and every way a reader may cut them."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.errors import InvalidRequest
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.jobs.pages import Excerpt, Page, PageBuilder, row_bytes
from synapse_host.jobs.spool import CHUNK_CHARS, CHUNK_ITEMS, SpooledItems, spool_chunks
from synapse_host.tokenization.model_tokenizer import EncodedText

DIMS = 2


def encoded(number: int, *, truncated: bool = False) -> EncodedText:
    digest = f"{number:064x}"
    content = f"{number + 1000:064x}" if truncated else digest
    return EncodedText([1] * (number % 5 + 1), number + 9, number % 5 + 1, truncated, digest, content)


def page_of(first: int, count: int) -> Page:
    builder = PageBuilder(DIMS)
    numbers = range(first, first + count)
    for number in numbers:
        row = encoded(number, truncated=number % 3 == 0)
        builder.add([number], [f"id-{number}"], [row], struct.pack("<2f", number, -number))
    assert builder.size == sum(row_bytes(DIMS, f"id-{n}", n % 5 + 1) for n in numbers)
    return builder.page()


def read_all(pages: list[Page], room: int) -> tuple[list[Excerpt], int]:
    """Every excerpt a reader with ``room`` gets until it is through, and how many reads that took."""
    cursor, excerpts = PageCursor(), []
    while cursor.page < len(pages):
        excerpt = Excerpt(DIMS, room)
        while cursor.page < len(pages) and not excerpt.full:
            page = pages[cursor.page]
            row = excerpt.take(page.vectors, page.columns_json, cursor.row)
            cursor = PageCursor(cursor.page + 1) if row is None else PageCursor(cursor.page, row)
        excerpts.append(excerpt)
    return excerpts, len(excerpts)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 5000))
def test_readers_of_any_room_get_every_row_once_and_whole(sizes: list[int], room: int) -> None:
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    pages = [page_of(start, size) for start, size in zip(starts, sizes, strict=True)]
    excerpts, _ = read_all(pages, room)
    items = [item for excerpt in excerpts for item in excerpt.vectors]
    assert [item["id"] for item in items] == [f"id-{n}" for n in range(sum(sizes))]
    floats = struct.unpack(f"<{2 * sum(sizes)}f", b"".join(excerpt.data for excerpt in excerpts))
    assert floats == tuple(value for n in range(sum(sizes)) for value in (n, -n))
    for number, item in enumerate(items):
        row = encoded(number, truncated=number % 3 == 0)
        assert item["submitted_sha256"] == row.submitted_sha256
        assert item["content_sha256"] == row.content_sha256
    told = [one for excerpt in excerpts for one in excerpt.truncation_disclosures]
    assert [one["truncated"] for one in told] == [n % 3 == 0 for n in range(sum(sizes))]
    assert [one["submitted_tokens"] for one in told] == [n + 9 for n in range(sum(sizes))]
    for excerpt in excerpts:
        counted = sum(
            row_bytes(DIMS, item["id"], tokens)
            for item, tokens in zip(excerpt.vectors, excerpt.real_token_counts, strict=True)
        )
        assert counted <= room or len(excerpt.vectors) == 1


@pytest.mark.parametrize("text", ["", "1", "1.", ".1", "-1.0", "1.2.3", "a.b", "1.2 ", "1" * 20 + ".0", "\uff11.0"])
def test_a_cursor_nobody_gave_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor") as refusal:
        PageCursor.read(text, "embed-1-1")
    assert refusal.value.details == {"job_id": "embed-1-1", "cursor": text[:80]}


def test_a_cursor_reads_back() -> None:
    given = PageCursor(3, 17).to_wire("embed-1-1")
    assert PageCursor.read(given, "embed-1-1") == PageCursor(3, 17)
    assert PageCursor.read(None, "embed-1-1") == PageCursor(0, 0)
    mark = given.rpartition(".")[2]
    for text, job_id in ((given, "embed-1-2"), (f"3.16.{mark}", "embed-1-1"), (f"03.17.{mark}", "embed-1-1")):
        with pytest.raises(InvalidRequest, match="none this host gave"):
            PageCursor.read(text, job_id)


@given(st.lists(st.text(max_size=30), max_size=60), st.data())
def test_the_spool_holds_each_pending_item_once_by_length(texts: list[str], data: st.DataObject) -> None:
    done = data.draw(st.sets(st.integers(0, max(0, len(texts) - 1))))
    ids = [f"id-{at}" for at in range(len(texts))]
    chunks = [SpooledItems.read(chunk) for chunk in spool_chunks(ids, texts, done)]
    found = [item for chunk in chunks for item in zip(chunk.ordinals, chunk.ids, chunk.texts, strict=True)]
    assert sorted(found) == [(at, ids[at], texts[at]) for at in range(len(texts)) if at not in done]
    assert [len(text) for _, _, text in found] == sorted(len(text) for _, _, text in found)


def test_a_chunk_of_the_spool_is_bounded_in_items_and_characters() -> None:
    many = [SpooledItems.read(chunk) for chunk in spool_chunks(["i"] * 1200, ["t"] * 1200)]
    assert [len(chunk) for chunk in many] == [CHUNK_ITEMS, CHUNK_ITEMS, 1200 - 2 * CHUNK_ITEMS]
    long = "x" * (CHUNK_CHARS // 2 + 1)
    assert [len(SpooledItems.read(chunk)) for chunk in spool_chunks(["a", "b", "c"], [long] * 3)] == [1, 1, 1]
