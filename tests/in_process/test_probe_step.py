"""What a probe's job says of the step at work, and that nothing late is said of another."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from synapse_host.errors import EngineCrashed
from synapse_host.operations.probing import ProbingService

pytestmark = pytest.mark.anyio


def lane_named(name: str) -> Any:
    return SimpleNamespace(model=SimpleNamespace(model_id=name), lease=lambda holder: nullcontext())


async def test_a_step_says_how_far_it_is_until_its_lane_is_over() -> None:
    seen: list[dict[str, Any]] = []
    counts: list[Any] = []

    async def run_probe(lane: Any, tell: Any, count: Any) -> Any:
        if counts:
            counts[0](9, 9)
        tell("lane")
        seen.append(job.facts["step"])
        count(3, 9)
        seen.append(job.facts["step"])
        tell("speed")
        seen.append(job.facts["step"])
        counts.append(count)
        if len(counts) == 2:
            counts[0](9, 9)
            seen.append(job.facts["step"])
        raise EngineCrashed("it died")

    job: Any = SimpleNamespace(job_id="job-1", facts={}, state="running")
    nothing = cast("Any", None)
    service = ProbingService(nothing, nothing, nothing, nothing, nothing, run_probe, nothing, 1)
    with pytest.raises(EngineCrashed):
        await service._run(job, [lane_named("a"), lane_named("b")])
    told = [(step["model_id"], step["step"], step.get("done"), step.get("of")) for step in seen]
    of_one = [("lane", None, None), ("lane", 3, 9), ("speed", None, None)]
    assert told == [("a", *each) for each in of_one] + [("b", *each) for each in of_one] + [("b", "speed", None, None)]
    counts[1](9, 9)
    assert "step" not in job.facts
