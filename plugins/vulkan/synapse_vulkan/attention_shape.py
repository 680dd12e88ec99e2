"""How the work of attention is shared out on a kind of device. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from synapse_vulkan.device_facts import DeviceKind


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Invocations of a workgroup, keys of a tile, and numbers of queries that one invocation keeps in registers."""

    lanes: int
    tile: int
    kept: int

    def queries_of(self, size: int) -> int:
        """Queries of one invocation for heads of ``size`` features."""
        return max(1, min(4, self.kept // size))


#: A software device has vectors of 8, a cache in place of registers, and a compiler whose time grows with the tile.
SOFTWARE_SHAPE = AttentionShape(lanes=8, tile=4, kept=256)
#: Others have registers for one query.
DEVICE_SHAPE = AttentionShape(lanes=64, tile=16, kept=0)


def shape_for(kind: DeviceKind) -> AttentionShape:
    """The shape a kind of device gets."""
    return SOFTWARE_SHAPE if kind == "software" else DEVICE_SHAPE
