"""The recordings a model keeps on the device: those used last, up to a number of dispatches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from synapse_vulkan.replay import Replay

#: Dispatches kept for one model. One costs the process 1.7 KiB with llvmpipe (64 shapes of a six-layer model), its
#: descriptor set the most of it; a model of 22 layers has about 300 in one shape.
DISPATCHES = 16_384


class Recordings:
    """Replays by key. The one used longest ago goes first; nothing of it is pending, since a run waits for its end."""

    def __init__(self, room: int = DISPATCHES) -> None:
        self._room = room
        self._kept: OrderedDict[Hashable, Replay] = OrderedDict()
        self.dispatches = 0

    def get(self, key: Hashable, make: Callable[[], Replay]) -> Replay:
        """The replay of ``key``, made where it is not kept; what passes the room beside it is freed."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        made = make()
        self._kept[key] = made
        self.dispatches += made.dispatches
        while self.dispatches > self._room and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))
        return made

    def drop(self, key: Hashable) -> None:
        """Free the replay of ``key``; the next who asks makes it anew."""
        dropped = self._kept.pop(key)
        self.dispatches -= dropped.dispatches
        dropped.close()

    def close(self) -> None:
        """Free every replay."""
        for key in list(self._kept):
            self.drop(key)

    def __len__(self) -> int:
        return len(self._kept)
