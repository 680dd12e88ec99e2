"""One segment of a family, recorded: its code run once over operations that record."""

from __future__ import annotations

from dataclasses import dataclass

from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine.executables import Build, ExecutableKey
from synapse_vulkan.attention_shape import shape_for
from synapse_vulkan.recording import Outside, Recording, View, contiguous
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.vulkan_ops import DeviceWeights, VulkanOps


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """The steps of a segment and what it makes: the result of one with the head, else hidden rows.

    ``takes_hidden`` and ``leaves_hidden`` say whether rows come from the segment before and go to the one after.
    """

    recording: Recording
    made: View
    takes_hidden: bool
    leaves_hidden: bool


def record_segment(key: ExecutableKey, build: Build, weights: DeviceWeights, runtime: Runtime) -> RecordedSegment:
    """Record ``build`` for the shape of ``key`` as ``runtime`` runs it; raises ``ValueError`` for a tensor amiss."""
    assert key.shape is not None, "an executable here has one shape"
    texts, positions = key.shape
    recording = Recording()
    ops = VulkanOps(weights, recording, runtime.products, shape_for(runtime.device.facts.kind))
    hidden = None if key.segment.has_stem else contiguous(Outside("hidden"), texts, positions, key.width)
    batch = Batch(
        contiguous(Outside("ids"), texts, positions, 1),
        contiguous(Outside("counts"), texts, 1, 1),
        kinds=contiguous(Outside("kinds"), texts, positions, 1) if key.kinds else None,
    )
    made = build(ops, batch, hidden)
    last = key.segment.has_head
    return RecordedSegment(recording, made if last else ops.hand_over(made), hidden is not None, not last)
