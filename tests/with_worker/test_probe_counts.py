"""A probe tells how far each of its long steps is, to its end and never past it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.certification.probe import REFERENCE_BACKEND, probe_lane
from synapse_host.hookspecs import Task
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_qwen3 import write_qwen3
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.probed_lane import probed_lane

pytestmark = pytest.mark.anyio
FIXTURES = Path(__file__).parents[1] / "fixtures"


#: What takes long on a slow device.
LONG = ("reference", "lane", "speed")


@pytest.mark.parametrize("task", ["embed", "rerank", "generate"])
async def test_every_long_step_is_counted_to_its_end(tmp_path: Path, task: Task) -> None:
    if task == "generate":
        write_qwen3(tmp_path / "model", recorded_qwen3(FIXTURES, "pairs").model)
    else:
        write_model(tmp_path / "model", TinyBertReranker(41, 48, 2, 4, 96, 120, 130))
    told: dict[str, list[tuple[int, int]]] = {}
    steps: list[str] = []

    def count(done: int, of: int) -> None:
        told.setdefault(steps[-1], []).append((done, of))

    made = probed_lane(
        tmp_path / "model", tmp_path, engine=REFERENCE_BACKEND, dtype="f32", fault=None, task=task, max_tokens=128
    )
    async with made as (lane, setting):
        found, _ = await probe_lane(lane, "0" * 64, replace(setting, count=count), steps.append)
    assert found.status == "certified", found.reason
    for step in LONG[: 2 if task == "generate" else 3]:
        counts = told[step]
        assert len(counts) > 1, step
        assert counts == sorted(counts), step
        assert counts[-1][0] == counts[-1][1] == counts[0][1], step
