"""Which numeric identities were declared to be of one vector space, and since when. Pure; the store keeps the rows.

A declaration joins two fingerprints, and nothing else: agreement within a tolerance does not add up, so that of A with
B and of B with C says nothing of A with C. Retracting ends a pair from then on; what was computed under it stays what
it was (wire contract section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from synapse_host.values import value_object

Pair = tuple[str, str]


def pair_of(one: str, other: str) -> Pair:
    """Two fingerprints in the order pairs are kept in."""
    return (one, other) if one <= other else (other, one)


@value_object
class Alias:
    """A declared pair; it holds until ``valid_to_ms``, which is None while it does."""

    pair: Pair
    valid_from_ms: int
    valid_to_ms: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    retraction: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The row of ``models.list``."""
        row: dict[str, Any] = {
            "fingerprint_a": self.pair[0],
            "fingerprint_b": self.pair[1],
            "valid_from_ms": self.valid_from_ms,
            "evidence": dict(self.evidence),
        }
        if self.valid_to_ms is not None:
            row.update(valid_to_ms=self.valid_to_ms, retraction_evidence=dict(self.retraction))
        return row


@value_object
class Mixed:
    """An index holds vectors of two identities that are not declared equivalent (any more)."""

    pair: Pair
    rebuild_target: str


class AliasTable:
    """The declared pairs in memory, and the version of their table."""

    def __init__(self, epoch: int = 0, aliases: Iterable[Alias] = ()) -> None:
        self.epoch = 0
        self.rows: Sequence[Alias] = ()
        self._equivalents: dict[str, tuple[str, ...]] = {}
        self.replace(epoch, aliases)

    def replace(self, epoch: int, aliases: Iterable[Alias]) -> None:
        """Take what the store holds now."""
        self.epoch, self.rows = epoch, tuple(aliases)
        found: dict[str, set[str]] = {}
        for alias in self.rows:
            if alias.valid_to_ms is None:
                one, other = alias.pair
                found.setdefault(one, set()).add(other)
                found.setdefault(other, set()).add(one)
        self._equivalents = {fingerprint: tuple(sorted(others)) for fingerprint, others in found.items()}

    def equivalents(self, fingerprint: str) -> tuple[str, ...]:
        """The identities declared equivalent to ``fingerprint`` now."""
        return self._equivalents.get(fingerprint, ())

    def check_index(self, index: str, provenance: Iterable[str], served: Iterable[str]) -> Mixed | None:
        """Whether vectors of all ``provenance`` may stand in the index of ``index``; the first pair that may not.

        The identity to rebuild for is the index's own where it is among those ``served``, else one of its provenance
        that is, else its own.
        """
        members = sorted(set(provenance) - {index})
        allowed = self.equivalents(index)
        apart = next((member for member in members if member not in allowed), None)
        if apart is None:
            return None
        here = set(served)
        target = next((fingerprint for fingerprint in (index, *members) if fingerprint in here), index)
        return Mixed(pair_of(index, apart), target)
