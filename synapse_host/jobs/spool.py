"""The texts of a job on their way through the store: in the order of execution, many to a chunk. Pure.

Short texts go first and stand together, so that a group pads little; the length in bytes stands for the tokens, which
nobody knows before a model is loaded. Each chunk is sorted again, by tokens, when it is tokenised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import orjson

from synapse_host.values import value_object

#: Items and characters of one chunk: enough for several groups of any backend, little enough to hold two of them.
CHUNK_ITEMS = 512
CHUNK_CHARS = 1 << 20


@value_object
class SpooledItems:
    """Some items of a job; ``ordinals`` are their places in the request."""

    ordinals: list[int]
    ids: list[str]
    texts: list[str]

    @classmethod
    def read(cls, chunk: bytes) -> SpooledItems:
        """What ``spool_chunks`` wrote."""
        return cls(*orjson.loads(chunk))

    def from_row(self, first: int) -> SpooledItems:
        """The items from ``first`` on."""
        return SpooledItems(self.ordinals[first:], self.ids[first:], self.texts[first:])

    def joined(self, after: SpooledItems) -> SpooledItems:
        """These items and then those."""
        return SpooledItems(self.ordinals + after.ordinals, self.ids + after.ids, self.texts + after.texts)

    def __len__(self) -> int:
        return len(self.ordinals)


def spool_chunks(ids: Sequence[str], texts: Sequence[str], done: Collection[int] = ()) -> Iterator[bytes]:
    """The items of a request whose ordinals are not in ``done``, in chunks."""
    pending = sorted((ordinal for ordinal in range(len(ids)) if ordinal not in done), key=lambda at: len(texts[at]))
    chunk: list[int] = []
    chars = 0
    for ordinal in pending:
        length = len(texts[ordinal])
        if chunk and (len(chunk) == CHUNK_ITEMS or chars + length > CHUNK_CHARS):
            yield _written(chunk, ids, texts)
            chunk, chars = [], 0
        chunk.append(ordinal)
        chars += length
    if chunk:
        yield _written(chunk, ids, texts)


def _written(chunk: list[int], ids: Sequence[str], texts: Sequence[str]) -> bytes:
    return orjson.dumps([chunk, [ids[at] for at in chunk], [texts[at] for at in chunk]])
