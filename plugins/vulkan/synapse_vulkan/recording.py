"""What a family's code leaves behind when it is run over recording operations: steps over values. Pure.

A ``Value`` is memory a step writes; a ``View`` is how an operation's handle looks into one. Nothing here knows Vulkan:
``replay`` turns the steps into commands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

from synapse_vulkan.arena import Life

#: Bytes of a float and of an integer.
WORD = 4
#: Memory outside the arena: what the host writes and reads, and the rows that pass between two segments.
OutsideName = Literal["ids", "counts", "kinds", "result", "hidden"]


@dataclass(eq=False, slots=True)
class Value:
    """``size`` numbers of four bytes, written by one step of the recording."""

    size: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True, slots=True)
class Outside:
    """Memory the recording is given."""

    name: OutsideName


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor on the device: a region of weight memory, ``texels`` where kernels read it four numbers at a time."""

    buffer: object
    offset: int
    size: int
    texels: object | None = None


Memory: TypeAlias = Value | Outside | Stored


@dataclass(frozen=True, slots=True)
class View:
    """A handle: features contiguous, strides of texts and positions in numbers; a stride of 0 stands still.

    ``heads`` is None for rows [texts, positions, width]; for heads the same memory is cut into ``heads`` parts of
    ``width / heads`` features.
    """

    memory: Memory
    texts: int
    positions: int
    width: int
    offset: int
    text_stride: int
    position_stride: int
    heads: int | None = None

    @property
    def rows(self) -> int:
        """Rows of all texts together."""
        return self.texts * self.positions

    @property
    def row_stride(self) -> int | None:
        """The one stride from row to row, where the rows of all texts have one."""
        if self.texts == 1 or self.text_stride == self.positions * self.position_stride:
            return self.position_stride
        return self.text_stride if self.positions == 1 else None

    @property
    def aligned(self) -> bool:
        """Whether every row begins at a multiple of four numbers and ends at one."""
        return not any(n % 4 for n in (self.width, self.offset, self.text_stride, self.position_stride))


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch: ``bindings`` are the storage buffers by place, ``writes`` the places of those written to.

    ``texels`` are read four numbers at a time; each of them is among the bindings too, or a weight.

    ``work`` is about how many floating operations it takes. ``split`` is the axis along which it may be cut.
    """

    kernel: str
    constants: tuple[int, ...]
    bindings: tuple[Memory, ...]
    writes: tuple[int, ...]
    push: bytes
    groups: tuple[int, int, int]
    work: float
    texels: tuple[Memory, ...] = ()
    split: int = 1


@dataclass(slots=True)
class Recording:
    """The steps of one executable in order, and the values they leave."""

    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def new(self, size: int) -> Value:
        """Memory for ``size`` numbers."""
        value = Value(size)
        self.values.append(value)
        return value

    def rows(self, texts: int, positions: int, width: int) -> View:
        """A view of new memory, rows one after the other."""
        return contiguous(self.new(texts * positions * width), texts, positions, width)

    def add(self, step: Step) -> None:
        """Append ``step`` and note whose life it is part of."""
        number = len(self.steps)
        for memory in step.bindings:
            if isinstance(memory, Value):
                memory.first = number if memory.first < 0 else memory.first
                memory.last = number
        self.steps.append(step)

    def lives(self) -> list[Life]:
        """The life of every value; one that no step touches takes no room."""
        return [Life(WORD * value.size if value.first >= 0 else 0, value.first, value.last) for value in self.values]


def contiguous(memory: Memory, texts: int, positions: int, width: int) -> View:
    """Rows one after the other from the start of ``memory``."""
    return View(memory, texts, positions, width, 0, positions * width, width)


def packed(*numbers: float) -> bytes:
    """Push constants: integers as int32, the rest as float32."""
    return struct.pack("<" + "".join("i" if isinstance(n, int) else "f" for n in numbers), *numbers)


def group_count(size: int, per_group: int) -> int:
    """Workgroups that cover ``size``."""
    return -(-size // per_group)


def cut_groups(step: Step, shares: float) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """(first group, groups) of the dispatches that together are ``step``: ``shares`` of them or one more, if it can."""
    along = step.groups[step.split]
    pieces = min(along, max(1, math.ceil(shares)))
    edges = [round(along * piece / pieces) for piece in range(pieces + 1)]
    return [(_along(step, (0, 0, 0), low), _along(step, step.groups, high - low)) for low, high in pairwise(edges)]


def _along(step: Step, groups: Sequence[int], value: int) -> tuple[int, int, int]:
    x, y, z = (value if axis == step.split else groups[axis] for axis in range(3))
    return x, y, z
