"""How much of the device's memory a lane may take: pure arithmetic.

CuPy keeps what it freed, without limit unless told one. A lane's budget is its weights, its tables, and what its
largest call needs at once, with some room beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Arrays of hidden width alive at once in a block: rows, their norm, the joined product (three), turned queries and
#: keys, context, and the sum on its way.
_HIDDEN_COPIES = 9
#: Rows of the feed-forward alive at once: both halves of its product, and what is gated of them.
_INNER_COPIES = 3
#: A freed block of CuPy's is not always one the next array fits in.
_SPARE = 1.25
#: Room for ids, counts, rope tables of short lanes and what CuPy rounds up, in bytes.
SLACK = 64 * 2**20


@dataclass(frozen=True, slots=True)
class CallSize:
    """What decides the memory of a call: padded tokens, features, bytes of a number, and what is kept beside it."""

    tokens: int
    hidden: int
    intermediate: int
    item_bytes: int
    kept: int = 0

    @property
    def bytes(self) -> int:
        """Bytes alive at once while a block of the model runs."""
        features = _HIDDEN_COPIES * self.hidden + _INNER_COPIES * self.intermediate
        return self.tokens * features * self.item_bytes + self.kept


def pool_limit(weight_bytes: int, call: CallSize, *, free: int) -> int:
    """Bytes CuPy's pool may grow to on a device of which ``free`` bytes are left before the weights are there.

    Raises:
        MemoryError: the lane does not fit; the message names both numbers in MiB.

    """
    needed = weight_bytes + call.bytes + SLACK
    if needed > free:
        raise MemoryError(
            f"the lane needs {needed >> 20} MiB of the GPU and {free >> 20} are free; load a smaller model, lower "
            "max_tokens, or end what else uses the GPU"
        )
    return min(free, int(weight_bytes + _SPARE * call.bytes) + SLACK)
