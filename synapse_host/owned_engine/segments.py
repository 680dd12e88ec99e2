"""How the blocks of a model are cut into separately executed segments: pure arithmetic.

A whole graph in one call reports nothing until it ends, so a long row would look like a hang; a segment boundary is
where progress can be told. Cutting changes no bits. It does cost memory, every segment holding its own buffers and a
compiler's own copy of its weights, so a call is cut only when it is long, and always at the same places: with one cut
for every length a backend would come to hold the weights once for each. Of a heavy model they are not held twice
either: it is cut for every call. Sources: design section 8; measured at 8,192 tokens: 4 segments cost 0 to 3 percent.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

#: Padded tokens of one call up to which the whole model is one segment.
TOKENS_PER_SEGMENT = 1024
#: Segments of a longer call; more would multiply buffers for progress nobody waits for. A row of 8,192 tokens takes a
#: model of 0.6 billion parameters some 100 seconds on two slow cores, and half a minute is as long as anybody should
#: hear nothing.
MAX_SEGMENTS = 7
#: Blocks times the square of the width from which a model is heavy: half a billion parameters. What a cut adds to a
#: call is nothing beside what a call of such a model takes.
HEAVY = 20_000_000


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Blocks ``first`` up to but not including ``stop`` of a model of ``blocks`` blocks."""

    first: int
    stop: int
    blocks: int

    @property
    def has_stem(self) -> bool:
        """True when the segment starts from token ids; otherwise it takes the hidden rows of the one before."""
        return self.first == 0

    @property
    def has_head(self) -> bool:
        """True when the segment ends in the result; otherwise it ends in hidden rows."""
        return self.stop == self.blocks


def tokens_to_cut(blocks: int, width: int, tokens: int) -> int:
    """The tokens by which a call is cut: those it has, or, of a heavy model, as many as make a long one."""
    heavy = blocks * width * width >= HEAVY
    return max(tokens, TOKENS_PER_SEGMENT + 1) if heavy else tokens


def segments_for(blocks: int, tokens: int, *, tokens_per_segment: int = TOKENS_PER_SEGMENT) -> tuple[Segment, ...]:
    """Cut ``blocks`` blocks for a call of ``tokens`` padded tokens, as evenly as they go.

    Of a model without blocks, stem and head are one segment.

    Raises:
        ValueError: ``blocks`` is negative.

    """
    if blocks < 0:
        raise ValueError(f"a model of {blocks} blocks cannot be cut into segments; check num_hidden_layers")
    pieces = 1 if tokens <= tokens_per_segment else max(1, min(blocks, MAX_SEGMENTS))
    edges = [round(blocks * piece / pieces) for piece in range(pieces + 1)]
    return tuple(Segment(first, stop, blocks) for first, stop in pairwise(edges))
