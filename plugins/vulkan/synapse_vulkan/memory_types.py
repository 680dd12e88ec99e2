"""Which of a device's memory types a buffer is put in. Pure.

A card has its own memory and sees the host's over a bus, some with a small window (256 MB) through which the host sees
its own; a processor with graphics has one memory for both; a software device has the host's alone. Memory that the host
sees and must flush is never taken: the specification promises every device a type that needs no flush.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Bits of ``VkMemoryPropertyFlags``.
DEVICE_LOCAL, HOST_VISIBLE, HOST_COHERENT, HOST_CACHED = 1, 2, 4, 8
#: What the host writes and reads without flushing.
MAPPABLE = HOST_VISIBLE | HOST_COHERENT
#: Types with any other bit (lazily allocated, protected, AMD's uncached ones) are for uses of their own and need
#: features that are not asked for.
_KNOWN = DEVICE_LOCAL | HOST_VISIBLE | HOST_COHERENT | HOST_CACHED


@dataclass(frozen=True, slots=True)
class MemoryType:
    """One type by its place in the device's list: its ``VkMemoryPropertyFlags`` and the place of its heap."""

    place: int
    flags: int
    heap: int

    @property
    def mappable(self) -> bool:
        """Whether the host may write and read it mapped, without flushing."""
        return self.flags & MAPPABLE == MAPPABLE


@dataclass(frozen=True, slots=True)
class Memories:
    """The memory of a device: its types in order, and the bytes of every heap."""

    types: tuple[MemoryType, ...]
    heaps: tuple[int, ...]

    def for_device(self, allowed: int) -> Sequence[MemoryType]:
        """Types for what the device works on, best first; ``allowed`` is the bit mask of a buffer's requirements.

        Memory that the host sees too comes first where it is as large as any of the device's: bytes go straight in.
        A small window is left to the driver until nothing else is left.
        """
        local = [kind for kind in self._usable(allowed) if kind.flags & DEVICE_LOCAL]
        largest = max((self.heaps[kind.heap] for kind in local), default=0)

        def rank(kind: MemoryType) -> tuple[bool, bool, int]:
            return self.heaps[kind.heap] < largest, not kind.mappable, kind.place

        return sorted(local, key=rank)

    def for_host(self, allowed: int) -> Sequence[MemoryType]:
        """Types for what passes between host and device, best first: what the host reads wants its cache."""
        seen = [kind for kind in self._usable(allowed) if kind.mappable]
        return sorted(
            seen, key=lambda kind: (not kind.flags & HOST_CACHED, bool(kind.flags & DEVICE_LOCAL), kind.place)
        )

    def _usable(self, allowed: int) -> list[MemoryType]:
        return [kind for kind in self.types if allowed & (1 << kind.place) and not kind.flags & ~_KNOWN]


def read_memories(properties: Any) -> Memories:
    """``VkPhysicalDeviceMemoryProperties`` as ``Memories``."""
    kinds = [properties.memoryTypes[place] for place in range(properties.memoryTypeCount)]
    heaps = [properties.memoryHeaps[place] for place in range(properties.memoryHeapCount)]
    return Memories(
        tuple(MemoryType(place, kind.propertyFlags, kind.heapIndex) for place, kind in enumerate(kinds)),
        tuple(heap.size for heap in heaps),
    )
