"""Which padded length a row gets and which rows share a call: pure arithmetic over token counts.

Not an optimisation that may be tuned freely: the padded length changes the last bits of a vector, so a row's bucket
depends on its own length and nothing else. The number of rows of a call changes no bits, so it may follow the budget.
Sources: design section 8, ``Executables``; a change of a bucket changes numbers and must change ``BUCKET_POLICY``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Regime = Literal["full", "band"]

#: Lengths up to here are padded to ``FINE_STEP``; above it to ``COARSE_STEP``, where a step costs less of a row.
FULL_LIMIT = 256
FINE_STEP = 16
COARSE_STEP = 64
#: Name of this rule, for ``build_flags.bucket_policy``: the boundaries themselves are not part of a fingerprint.
BUCKET_POLICY = f"own-length-{FINE_STEP}-to-{FULL_LIMIT}-then-{COARSE_STEP}"
#: A compiler that plans per shape keeps one plan for each pair of row count and bucket: few row counts, few plans.
ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64)
#: Padded tokens of one call. Measured with MiniLM on two AVX-512 cores: 512 to 2,048 are within noise of each other.
TOKEN_BUDGET = 1024


class RowRefused(ValueError):
    """A row no lane of this ladder can hold; ``row`` is its index in the batch."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"row {row}: {problem}")
        self.row = row
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Call:
    """One execution: the rows of the batch it computes, all of them padded to ``bucket`` tokens."""

    bucket: int
    row_indices: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Padded tokens of the call."""
        return self.bucket * len(self.row_indices)


@dataclass(frozen=True, slots=True)
class BucketLadder:
    """The padded lengths of a lane that takes rows of up to ``max_tokens`` tokens."""

    max_tokens: int
    token_budget: int = TOKEN_BUDGET

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.token_budget < 1:
            raise ValueError(
                f"max_tokens {self.max_tokens} and token_budget {self.token_budget} must both be at least 1; "
                "load the model with the token limit it was trained for"
            )

    def bucket(self, tokens: int) -> int:
        """Padded length of a row of ``tokens`` tokens; raises ``ValueError`` when the lane cannot hold it."""
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(
                f"a row of {tokens} tokens does not fit a lane of 1 to {self.max_tokens}; truncate it before sending"
            )
        step = FINE_STEP if tokens <= FULL_LIMIT else COARSE_STEP
        return min(-(-tokens // step) * step, self.max_tokens)

    def buckets(self) -> tuple[int, ...]:
        """Every padded length the lane uses, ascending."""
        return tuple(sorted({self.bucket(tokens) for tokens in range(1, self.max_tokens + 1)}))

    def rows_per_call(self, bucket: int) -> int:
        """The largest allowed row count whose padded tokens keep the budget; 1 when even one row passes it."""
        return max((rows for rows in ROW_COUNTS if rows * bucket <= self.token_budget), default=1)


def regime(bucket: int) -> Regime:
    """How local attention windows are computed at this padded length; one recorded graph cannot branch on it."""
    return "full" if bucket <= FULL_LIMIT else "band"


def plan(counts: Sequence[int], ladder: BucketLadder) -> list[Call]:
    """The calls that compute rows of ``counts`` tokens, shortest bucket first, each row in exactly one call.

    Row counts are exact, never filled up: a remainder is split into smaller allowed counts.

    Raises:
        RowRefused: a row has no tokens or more than the lane takes; it names the row and its length.

    """
    by_bucket: dict[int, list[int]] = {}
    for index, tokens in enumerate(counts):
        try:
            by_bucket.setdefault(ladder.bucket(tokens), []).append(index)
        except ValueError as refusal:
            raise RowRefused(index, str(refusal)) from refusal
    return [
        Call(bucket, group)
        for bucket, rows in sorted(by_bucket.items())
        for group in _groups(rows, ladder.rows_per_call(bucket))
    ]


def _groups(rows: Sequence[int], largest: int) -> Iterator[tuple[int, ...]]:
    position = 0
    while position < len(rows):
        left = len(rows) - position
        size = max(count for count in ROW_COUNTS if count <= min(left, largest))
        yield tuple(rows[position : position + size])
        position += size
