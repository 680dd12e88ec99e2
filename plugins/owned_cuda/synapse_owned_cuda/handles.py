"""What the CUDA operations hand around that is not a plain array: parts of rows, heads in place, sums not yet made.

Each exists to save a pass over memory: a split and a cut into heads move nothing, a head's norm waits for its rotation,
and a sum waits for the norm that mostly follows it.
"""

from __future__ import annotations

from dataclasses import dataclass

from synapse_owned_cuda.device import Array


@dataclass(frozen=True, slots=True)
class Part:
    """Features ``offset`` up to ``offset + size`` of every row of ``whole``."""

    whole: Array
    offset: int
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """As that of rows."""
        return (*self.whole.shape[:-1], self.size)


@dataclass(frozen=True, slots=True)
class Heads:
    """``n`` heads of ``d`` features at ``offset`` of the rows of ``whole`` [B, T, width]; the first ``length`` count.

    ``norm`` is the weight and epsilon of an RMS norm that is still to be computed.
    """

    whole: Array
    offset: int
    n: int
    d: int
    length: int
    norm: tuple[Array, float] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """[B, N, S, D], as the operations speak of heads."""
        return (self.whole.shape[0], self.n, self.length, self.d)

    @property
    def width(self) -> int:
        """Elements from position to position."""
        return int(self.whole.shape[2])

    @property
    def is_plain(self) -> bool:
        """Whether ``whole`` is these heads and nothing else, norm included."""
        _, positions, width = self.whole.shape
        return self.norm is None and (positions, width) == (self.length, self.n * self.d)


class Sum:
    """``a + b`` of one shape, made by whoever needs it first: alone, or on the way of a norm."""

    def __init__(self, a: Array, b: Array) -> None:
        self.a = a
        self.b = b
        self.total: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """That of both."""
        return tuple(self.a.shape)

    def made(self, total: Array) -> Array:
        """Keep ``total`` and let go of what it was made of."""
        self.total, self.a = total, total
        self.b = None
        return total
