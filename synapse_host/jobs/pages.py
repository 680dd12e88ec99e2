"""Pages: finished rows on their way into the store, and a reader's share of what is there. Pure.

A page is one block of little-endian f32 and one JSON object of the small columns, so that neither writing nor reading
costs anything per number. The digest of the embedded text is kept only where it differs from that of the text sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from synapse_host.tokenization.model_tokenizer import EncodedText
from synapse_host.values import value_object

#: Bytes a row is counted with beside its vector, its id and its tokens (original facts, section 5).
ROW_OVERHEAD_BYTES = 256
FLOAT_BYTES = 4


def row_bytes(dims: int, item_id: str, tokens: int) -> int:
    """What a row is counted with in a page."""
    return dims * FLOAT_BYTES + len(item_id) + tokens + ROW_OVERHEAD_BYTES


@value_object
class Page:
    """A page to commit; ``ordinals`` are the places of its items in the request."""

    ordinals: list[int]
    dims: int
    vectors: bytes
    columns_json: bytes


@dataclass(slots=True)
class PageBuilder:
    """Gathers the rows of one page; ``size`` is what they are counted with so far."""

    dims: int
    size: int = 0
    _ordinals: list[int] = field(default_factory=list)
    _ids: list[str] = field(default_factory=list)
    _rows: list[EncodedText] = field(default_factory=list)
    _vectors: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self._ordinals)

    def add(self, ordinals: Sequence[int], ids: Sequence[str], rows: Sequence[EncodedText], vectors: bytes) -> None:
        """Take finished rows, with ``dims`` f32 each in ``vectors``."""
        self._ordinals += ordinals
        self._ids += ids
        self._rows += rows
        self._vectors += vectors
        self.size += sum(row_bytes(self.dims, item, len(row.ids)) for item, row in zip(ids, rows, strict=True))

    def page(self) -> Page:
        """What was gathered."""
        columns = {
            "ids": self._ids,
            "tokens": [row.effective_tokens for row in self._rows],
            "submitted_tokens": [row.submitted_tokens for row in self._rows],
            "submitted_sha256": [row.submitted_sha256 for row in self._rows],
            "cut": {str(at): row.content_sha256 for at, row in enumerate(self._rows) if row.truncated},
        }
        return Page(self._ordinals, self.dims, bytes(self._vectors), orjson.dumps(columns))


@dataclass(slots=True)
class Excerpt:
    """The rows a reader gets, gathered from pages until ``room`` bytes are used up; one row always fits."""

    dims: int
    room: int
    vectors: list[dict[str, str]] = field(default_factory=list)
    real_token_counts: list[int] = field(default_factory=list)
    truncation_disclosures: list[dict[str, Any]] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)

    @property
    def full(self) -> bool:
        """Whether no further row fits."""
        return self.room <= 0

    def take(self, vectors: bytes, columns_json: bytes, first: int) -> int | None:
        """Add rows of a page from ``first`` on; the row to go on with, None when the page is used up."""
        columns = orjson.loads(columns_json)
        ids, tokens = columns["ids"], columns["tokens"]
        end = self._fitting(ids, tokens, first)
        taken = slice(first, end)
        digests, submitted = columns["submitted_sha256"][taken], columns["submitted_tokens"][taken]
        cut = {int(at) - first: content for at, content in columns["cut"].items()}
        self.real_token_counts += tokens[taken]
        self.vectors += [
            {"id": item, "content_sha256": digest, "submitted_sha256": digest}
            for item, digest in zip(ids[taken], digests, strict=True)
        ]
        self.truncation_disclosures += [
            {"submitted_tokens": whole, "effective_tokens": kept, "truncated": False}
            for whole, kept in zip(submitted, tokens[taken], strict=True)
        ]
        self._disclose(cut, end - first)
        width = self.dims * FLOAT_BYTES
        self.data += memoryview(vectors)[first * width : end * width]
        return end if end < len(ids) else None

    def _disclose(self, cut: Mapping[int, str], rows: int) -> None:
        """Say of the rows just added which were cut, and the digest of what was embedded of them."""
        base = len(self.vectors) - rows
        for at, content in cut.items():
            if 0 <= at < rows:
                self.vectors[base + at]["content_sha256"] = content
                self.truncation_disclosures[base + at]["truncated"] = True

    def _fitting(self, ids: Sequence[str], tokens: Sequence[int], first: int) -> int:
        """The end of the rows that fit, and their bytes off the room; the very first row of all fits anyhow."""
        fixed = self.dims * FLOAT_BYTES + ROW_OVERHEAD_BYTES
        whole = sum(map(len, ids[first:])) + sum(tokens[first:]) + fixed * (len(ids) - first)
        if whole <= self.room:
            self.room -= whole
            return len(ids)
        for at in range(first, len(ids)):
            size = fixed + len(ids[at]) + tokens[at]
            if size > self.room and (self.vectors or at > first):
                self.room = 0
                return at
            self.room -= size
        return len(ids)
