"""Jobs that have not ended keep what they are to be computed with: the one that runs, and those behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from synapse_host.admission.work_class import WorkClass
from synapse_host.jobs.open_jobs import OpenJobs
from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import OTHER, write_tiny_catalog

pytestmark = pytest.mark.anyio
LANE = f"{OTHER}-reference"


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


async def submitted(scene: Scene, key: str) -> str:
    items = [{"id": str(number), "text": f"{key} {number}"} for number in range(65)]
    return str((await scene.call("embed.batch", model=LANE, items=items, request_key=key))["job_id"])


async def ended(scene: Scene, job_id: str) -> Mapping[str, Any]:
    while (status := await scene.call("model.status", job_id=job_id))["state"] in ("queued", "running"):
        await anyio.lowlevel.checkpoint()
    return status


async def test_an_entry_is_held_by_the_job_that_runs_and_by_those_behind_it(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await scene.embed(LANE)
        lane = await scene.lane(LANE)
        async with lane.turns.held(WorkClass.INTERACTIVE):
            jobs = [await submitted(scene, key) for key in ("first", "second")]
            while not lane.turns.waiting:
                await anyio.lowlevel.checkpoint()
            refusal = await scene.refused("models.remove", catalog_id=OTHER)
            assert refusal.code == "model_in_use"
            assert refusal.details == {
                "catalog_id": OTHER,
                "holders": [{"kind": "loaded", "model_id": LANE}, *({"kind": "job", "job_id": job} for job in jobs)],
            }
        with anyio.fail_after(60):
            assert [(await ended(scene, job))["state"] for job in jobs] == ["done", "done"]
            # Their rows say so a moment before the host has noted it.
            while scene.host.jobs.ledger.open.on([LANE]):
                await anyio.lowlevel.checkpoint()
        await scene.call("model.unload", model_id=LANE)
        assert len((await scene.call("models.remove", catalog_id=OTHER))["removed_manifests"]) == 1


def test_an_ended_job_holds_nothing_and_ending_it_again_harms_nothing() -> None:
    jobs = OpenJobs()
    jobs.admitted("a", "lane-1")
    jobs.admitted("b", "lane-2")
    jobs.admitted("c", "lane-1")
    assert jobs.on(["lane-1"]) == ["a", "c"]
    jobs.ended("a")
    jobs.ended("a")
    assert jobs.on(["lane-1", "lane-2"]) == ["b", "c"]
