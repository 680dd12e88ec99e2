"""Where a lane of the Neural Engine computes: the share of its operations placed there, shape by shape.

A program whose operations the system puts on the processor is as slow and as loud as the processor, however right its
numbers are. Certification therefore gates on the lowest share of any shape (wire contract, certification).
"""

from __future__ import annotations

from typing import Any

from synapse_host.lanes.lane import Lane
from synapse_host.lanes.residency import Serving
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.values import value_object


@value_object
class Placement:
    """The shares a lane's worker told: after each shape was compiled, or once for a set of packages (shape None).

    A share is the lowest of what is compiled by then, so the first shape to miss a floor is the one at fault.
    """

    shares: tuple[tuple[int | None, float | None], ...]

    @property
    def lowest(self) -> float | None:
        """The lowest share; None where the worker told none."""
        return min((share for _, share in self.shares if share is not None), default=None)

    def missed(self, floor: float) -> list[str]:
        """What is below ``floor``, a sentence, or nothing."""
        if any(share is None for _, share in self.shares):
            return ["the worker tells no share of operations on the Neural Engine, and none is certified without"]
        for shape, share in self.shares:
            if share is not None and not share >= floor:
                where = "" if shape is None else f" at shape {shape}"
                return [f"Neural Engine share{where} is {share:.4f}, below {floor}"]
        return []

    def to_evidence(self) -> dict[str, Any]:
        """What the certification keeps."""
        return {"lowest": self.lowest, "shares": [{"shape": shape, "share": share} for shape, share in self.shares]}


async def placement_of(lane: Lane) -> Placement:
    """Compile each shape of a lane of the Neural Engine in turn and ask for its share.

    Raises:
        SynapseError: a shape cannot be compiled, or the worker ended.

    """
    serving = lane.serving
    shapes: tuple[int | None, ...] = (serving.buckets if serving.shapes is not None else None) or (None,)
    try:
        return Placement(tuple([(shape, await _share(serving, shape)) for shape in shapes]))
    except WorkerRefusal as refusal:
        raise to_synapse_error(refusal) from refusal


async def _share(serving: Serving, shape: int | None) -> float | None:
    lease = None if shape is None or serving.shapes is None else serving.shapes.lease(shape, admitted=False)
    try:
        if lease is not None:
            await lease.wait()
        return (await serving.worker.ping(f"ping-placement-{shape or 0}")).placement_share
    finally:
        if lease is not None:
            lease.release()
