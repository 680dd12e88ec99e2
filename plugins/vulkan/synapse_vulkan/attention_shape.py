"""How the work of attention is shared out on a kind of device. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from synapse_vulkan.device_facts import REQUIRED_LIMITS, DeviceKind

#: Bytes of a shared tile's number.
_WORD = 4


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Invocations of a workgroup, keys of a tile, numbers of queries that one invocation keeps in registers.

    ``shared_bytes`` is the room for a tile in memory the workgroup shares; 0 reads every key where it lies.
    """

    lanes: int
    tile: int
    kept: int
    shared_bytes: int

    def constants(self, size: int, aligned: bool) -> tuple[int, ...]:
        """The kernel's specialisation constants for heads of ``size`` features."""
        return self.lanes, self.queries_of(size), self.tile, size, int(aligned), int(self._fits(size))

    def queries_of(self, size: int) -> int:
        """Queries of one invocation for heads of ``size`` features."""
        return max(1, min(4, self.kept // size))

    def _fits(self, size: int) -> bool:
        return 2 * self.tile * -(-size // 4) * 4 * _WORD <= self.shared_bytes


#: A software device has vectors of 8, a cache in place of registers, no shared memory worth filling, and a compiler
#: whose time grows with the tile.
SOFTWARE_SHAPE = AttentionShape(lanes=8, tile=4, kept=256, shared_bytes=0)
#: Others have registers for one query, and the shared memory of the floor.
DEVICE_SHAPE = AttentionShape(lanes=64, tile=16, kept=0, shared_bytes=REQUIRED_LIMITS["shared_bytes"])


def shape_for(kind: DeviceKind) -> AttentionShape:
    """The shape a kind of device gets."""
    return SOFTWARE_SHAPE if kind == "software" else DEVICE_SHAPE
