"""Tokenised stretches of a job and the groups they are cut into. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synapse_host.errors import InvalidRequest
from synapse_host.hookspecs import BatchPolicy
from synapse_host.jobs.spool import SpooledItems
from synapse_host.lanes.batching import group_rows
from synapse_host.tokenization.model_tokenizer import EncodedText
from synapse_host.values import value_object


@value_object
class Rows:
    """Items with their tokens."""

    ordinals: list[int]
    ids: list[str]
    encoded: list[EncodedText]

    def __len__(self) -> int:
        return len(self.ordinals)

    def at(self, places: Iterable[int]) -> Rows:
        """The items at ``places``."""
        chosen = list(places)
        return Rows(
            [self.ordinals[place] for place in chosen],
            [self.ids[place] for place in chosen],
            [self.encoded[place] for place in chosen],
        )

    def alone(self) -> list[Rows]:
        """Each item by itself."""
        return [self.at([place]) for place in range(len(self))]

    def then(self, after: Rows) -> Rows:
        """These and then those."""
        return Rows(self.ordinals + after.ordinals, self.ids + after.ids, self.encoded + after.encoded)


NOTHING = Rows([], [], [])


def rows_of(items: SpooledItems, encoded: Sequence[EncodedText]) -> tuple[Rows, InvalidRequest | None]:
    """Items with what the tokenizer made of them, and a refusal of the first without a token, which is left out."""
    whole = Rows(items.ordinals, items.ids, list(encoded))
    wordless = [item_id for item_id, row in zip(items.ids, encoded, strict=True) if not row.ids]
    if not wordless:
        return whole, None
    refusal = InvalidRequest(
        f"item {wordless[0]!r} has no tokens under this model's tokenizer, so it has no vector; leave it out",
        details={"item_id": wordless[0]},
    )
    return whole.at(place for place, row in enumerate(whole.encoded) if row.ids), refusal


def cut(rows: Rows, policy: BatchPolicy, ladder: Sequence[int] | None, *, last: bool) -> tuple[list[Rows], Rows]:
    """The groups of a stretch, and what is left for the next one: its last group may still grow, unless it is ``last``.

    The longest rows are in it, so that the next stretch, which begins with longer ones, finds its like.
    """
    groups = [rows.at(group) for group in group_rows([len(row.ids) for row in rows.encoded], policy, ladder)]
    if last or not groups:
        return groups, NOTHING
    return groups[:-1], groups[-1]
