"""The memory a buffer is put in, on the layouts that drivers of real devices report."""

from __future__ import annotations

import pytest
from synapse_vulkan.memory_types import (
    DEVICE_LOCAL,
    HOST_CACHED,
    HOST_COHERENT,
    HOST_VISIBLE,
    Memories,
    MemoryType,
)

GIB = 2**30
SEEN = HOST_VISIBLE | HOST_COHERENT
#: Bits of AMD's device-coherent and uncached types; taking one without its feature is an error.
AMD_ONLY = 0x40 | 0x80


def memories(heaps: list[int], types: list[tuple[int, int]]) -> Memories:
    return Memories(tuple(MemoryType(place, *kind) for place, kind in enumerate(types)), tuple(heaps))


#: A card whose memory the host sees through a window of 256 MB.
SMALL_WINDOW = memories(
    [8 * GIB, 16 * GIB, GIB // 4],
    [(DEVICE_LOCAL, 0), (SEEN, 1), (SEEN | HOST_CACHED, 1), (DEVICE_LOCAL | SEEN, 2)],
)
#: A card whose whole memory the host sees, with types of AMD's own at the end.
WHOLE_WINDOW = memories(
    [16 * GIB, 32 * GIB],
    [
        (DEVICE_LOCAL, 0),
        (SEEN, 1),
        (DEVICE_LOCAL | SEEN, 0),
        (SEEN | HOST_CACHED, 1),
        (DEVICE_LOCAL | AMD_ONLY, 0),
        (DEVICE_LOCAL | SEEN | AMD_ONLY, 0),
        (SEEN | HOST_CACHED | AMD_ONLY, 1),
    ],
)
#: A card without any window.
NO_WINDOW = memories([8 * GIB, 16 * GIB], [(DEVICE_LOCAL, 0), (SEEN, 1), (SEEN | HOST_CACHED, 1)])
#: Graphics on a processor: one memory, of which cached types come first and must be flushed.
SHARED = memories(
    [12 * GIB],
    [
        (DEVICE_LOCAL | HOST_VISIBLE | HOST_CACHED, 0),
        (DEVICE_LOCAL | SEEN, 0),
        (DEVICE_LOCAL | SEEN | HOST_CACHED, 0),
    ],
)
#: The same without a cached type that needs no flush.
SHARED_UNCACHED = memories([4 * GIB], [(DEVICE_LOCAL | HOST_VISIBLE | HOST_CACHED, 0), (DEVICE_LOCAL | SEEN, 0)])
ALL = 0xFFFF


@pytest.mark.parametrize(
    ("layout", "device", "host"),
    [
        (SMALL_WINDOW, [0, 3], [2, 1, 3]),
        (WHOLE_WINDOW, [2, 0], [3, 1, 2]),
        (NO_WINDOW, [0], [2, 1]),
        (SHARED, [1, 2, 0], [2, 1]),
        (SHARED_UNCACHED, [1, 0], [1]),
    ],
    ids=["small-window", "whole-window", "no-window", "shared", "shared-uncached"],
)
def test_the_best_type_comes_first(layout: Memories, device: list[int], host: list[int]) -> None:
    assert [kind.place for kind in layout.for_device(ALL)] == device
    assert [kind.place for kind in layout.for_host(ALL)] == host


def test_types_a_buffer_may_not_lie_in_are_left_out() -> None:
    assert [kind.place for kind in WHOLE_WINDOW.for_device(0b0001)] == [0]
    assert [kind.place for kind in NO_WINDOW.for_host(0b0011)] == [1]
    assert not NO_WINDOW.for_device(0b0110)


def test_memory_that_must_be_flushed_is_never_mapped() -> None:
    assert [kind.place for kind in SHARED.types if not kind.mappable] == [0]
