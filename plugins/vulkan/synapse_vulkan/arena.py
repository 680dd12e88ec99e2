"""Where the intermediate values of one recording lie in one buffer: those never alive together share bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from synapse_vulkan.device_facts import ALIGNMENT

#: Arenas are made in sizes of a power of two, so that recordings of many shapes share few.
SMALLEST_ARENA = 1 << 20


@dataclass(frozen=True, slots=True)
class Life:
    """``size`` bytes that are written in step ``first`` and read last in step ``last``."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The offset of every value, multiples of ``ALIGNMENT``, and the bytes they take together."""

    offsets: tuple[int, ...]
    size: int


def plan(lives: Sequence[Life]) -> Plan:
    """Offsets by which no two values that are alive in the same step overlap; the largest are placed first."""
    offsets = [0] * len(lives)
    placed: list[int] = []
    for index in sorted(range(len(lives)), key=lambda place: (-lives[place].size, place)):
        life = lives[index]
        beside = [other for other in placed if _meet(life, lives[other])]
        offsets[index] = _lowest_gap(life.size, sorted((offsets[o], offsets[o] + lives[o].size) for o in beside))
        placed.append(index)
    size = max((offset + life.size for offset, life in zip(offsets, lives, strict=True)), default=0)
    return Plan(tuple(offsets), aligned(size))


def aligned(size: int) -> int:
    """``size`` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def arena_size(needed: int) -> int:
    """The size of the arena that ``needed`` bytes get."""
    return max(SMALLEST_ARENA, 1 << max(0, needed - 1).bit_length())


def _meet(one: Life, other: Life) -> bool:
    return one.first <= other.last and other.first <= one.last


def _lowest_gap(size: int, taken: Sequence[tuple[int, int]]) -> int:
    offset = 0
    for begin, end in taken:
        if offset + size <= begin:
            return offset
        offset = max(offset, aligned(end))
    return offset
