"""Which padded length a row gets on Metal: a short ladder, so that few shapes are compiled. Pure arithmetic.

A rung depends on the row's own length and nothing else. Source: the second ladder of original facts, section 4, where
padding a code corpus costs 27 percent more tokens. A change of a rung changes numbers and must change
``BUCKET_POLICY``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from synapse_host.owned_engine.shape_policy import BucketLadder

RUNGS = (64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
#: Past the last rung, for the few models that reach there, lengths are multiples of this.
STEP = 2048
#: Name of this ladder, for ``build_flags.bucket_policy``.
BUCKET_POLICY = "owned-metal-v3"
#: Most rows of one call; the engine takes 1, 2, 4 or 8, so a rung has at most four shapes.
MOST_ROWS = 8
#: Padded tokens of one call, and of a group the host sends (original facts, section 4: bulk quantum).
TOKEN_BUDGET = 3072


@dataclass(frozen=True, slots=True)
class MetalLadder(BucketLadder):
    """The rungs of a lane that takes rows of up to ``max_tokens`` tokens; the last is ``max_tokens`` itself."""

    token_budget: int = TOKEN_BUDGET

    def bucket(self, tokens: int) -> int:
        """Padded length of a row of ``tokens`` tokens; raises ``ValueError`` when the lane cannot hold it."""
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(
                f"a row of {tokens} tokens does not fit a lane of 1 to {self.max_tokens}; truncate it before sending"
            )
        place = bisect_left(RUNGS, tokens)
        return min(RUNGS[place] if place < len(RUNGS) else -(-tokens // STEP) * STEP, self.max_tokens)

    def rows_per_call(self, bucket: int) -> int:
        """The largest allowed row count whose padded tokens keep the budget; 1 when even one row passes it."""
        allowed = (rows for rows in (MOST_ROWS, 4, 2) if rows * bucket <= self.token_budget)
        return next(allowed, 1)
