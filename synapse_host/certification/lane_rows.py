"""Rows through a lane that nobody asked for: computed as it would serve them, and held back by a pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from synapse_host.admission.work_class import WorkClass
from synapse_host.certification.step_count import Count, counter, uncounted
from synapse_host.lanes.group_run import GroupPlan
from synapse_host.lanes.lane import Lane


async def lane_vectors(lane: Lane, rows: Sequence[Sequence[int]], count: Count = uncounted) -> tuple[int, bytes]:
    """Width, and little-endian float32 vectors of token ``rows`` in the order given; ``count`` is told of rows.

    Raises:
        SynapseError: as ``Lane.embed``; ``lane_paused`` where a shape is not compiled and a pause began.

    """
    return await lane.embed(rows, _names(rows), _plan(lane, "embed", rows, count))


async def lane_scores(lane: Lane, rows: Sequence[Sequence[int]], count: Count = uncounted) -> bytes:
    """Little-endian float32 scores of composed ``rows`` in the order given; raises as ``lane_vectors``."""
    return await lane.rerank(rows, _names(rows), _plan(lane, "rerank", rows, count))


def _plan(lane: Lane, operation: Literal["embed", "rerank"], rows: Sequence[Sequence[int]], count: Count) -> GroupPlan:
    plan = lane.plan(operation, [len(row) for row in rows], WorkClass.BULK, admitted=False)
    return replace(plan, told=counter(count, len(rows)))


def _names(rows: Sequence[Sequence[int]]) -> list[str]:
    return [str(index) for index in range(len(rows))]
