"""The padded lengths a Neural Engine lane has programs for: a short ladder, since each rung costs a compilation."""

from __future__ import annotations

from dataclasses import dataclass

from synapse_host.owned_engine.shape_policy import BucketLadder

#: Source: the shapes the direct engine of the wire contract publishes.
RUNGS = (128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class ShapeLadder(BucketLadder):
    """The rungs a lane of ``max_tokens`` tokens needs; a row takes the smallest that holds it, alone in its call."""

    def bucket(self, tokens: int) -> int:
        """The rung of a row of ``tokens`` tokens; raises ``ValueError`` when the lane cannot hold it."""
        if not 1 <= tokens <= self.max_tokens:
            raise ValueError(
                f"a row of {tokens} tokens does not fit a lane of 1 to {self.max_tokens}; truncate it before sending"
            )
        return next(rung for rung in self.buckets() if rung >= tokens)

    def buckets(self) -> tuple[int, ...]:
        """Every rung of the lane, ascending: up to the first that holds ``max_tokens``."""
        needed = [rung for rung in RUNGS if rung < self.max_tokens]
        above = [rung for rung in RUNGS if rung >= self.max_tokens]
        if not above:
            raise ValueError(f"max_tokens {self.max_tokens} passes the longest shape, {RUNGS[-1]}; lower max_tokens")
        return (*needed, above[0])

    def rows_per_call(self, bucket: int) -> int:
        """One: a program has the shape of one row."""
        return 1
