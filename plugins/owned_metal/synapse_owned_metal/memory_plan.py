"""How much memory a lane may take on the device: pure arithmetic.

MLX keeps freed buffers for the next graph, without limit unless told one. A lane's budget is its weights and what the
largest call needs at once; what is freed may be kept up to the size of one call, which the next will ask for again.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Bytes of an activation; statistics and scores are float32 in every policy.
_ACTIVATION_BYTES = 4
#: Copies of hidden rows and of feed-forward rows alive at once in a block, residual, queries, keys and values included.
_HIDDEN_COPIES = 10
_INNER_COPIES = 3
#: Tiles of scores alive at once: scores, their mask, the weights made of them, and those of a tile computed early.
_TILE_COPIES = 5
#: Room for MLX's own buffers and the host's rows, in bytes.
_SLACK = 256 * 2**20


@dataclass(frozen=True, slots=True)
class CallSize:
    """What decides the memory of a call: padded tokens, features, and the scores of one attention tile."""

    tokens: int
    hidden: int
    intermediate: int
    tile_scores: int

    @property
    def bytes(self) -> int:
        """Bytes alive at once while a block of the model runs."""
        features = _HIDDEN_COPIES * self.hidden + _INNER_COPIES * self.intermediate
        return _ACTIVATION_BYTES * (self.tokens * features + _TILE_COPIES * self.tile_scores)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """``limit`` bytes in all, of which ``cache`` may be freed buffers kept for reuse."""

    limit: int
    cache: int


def memory_plan(weight_bytes: int, call: CallSize, *, device_limit: int | None) -> MemoryPlan:
    """The limits of a lane; ``device_limit`` is what the device should not be asked to pass, None where unknown.

    Raises:
        MemoryError: the lane does not fit the device; the message names both numbers in MiB.

    """
    needed = weight_bytes + call.bytes
    if device_limit is not None and needed > device_limit:
        raise MemoryError(
            f"the lane needs {needed >> 20} MiB and the device should be asked for no more than {device_limit >> 20}; "
            "load a smaller model or lower max_tokens"
        )
    cache = call.bytes + _SLACK
    limit = needed + call.bytes + _SLACK
    return MemoryPlan(limit if device_limit is None else min(limit, device_limit), cache)
