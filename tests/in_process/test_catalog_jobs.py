"""Batches for lanes of the catalog: length is refused before a job is made, and a job waits for the lane's check."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import MAX_TOKENS, OTHER, write_tiny_catalog

pytestmark = pytest.mark.anyio
LANE = f"{OTHER}-reference"
#: A letter is a token here, and two special ones are added.
FITS, TOO_LONG = "a " * (MAX_TOKENS - 2), "a " * (MAX_TOKENS - 1)


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


def batch(*texts: str) -> dict[str, Any]:
    """Too many items for an inline answer."""
    return {"model": LANE, "texts": [*["a b"] * 70, *texts], "request_key": "k"}


async def ended(scene: Scene, job_id: str) -> dict[str, Any]:
    with anyio.fail_after(60):
        while (status := await scene.call("model.status", job_id=job_id))["state"] in ("queued", "running"):
            await anyio.lowlevel.checkpoint()
    return status


async def test_a_text_that_is_too_long_is_named_and_no_job_is_made(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        refusal = await scene.refused("embed.batch", **batch(FITS, TOO_LONG))
        assert refusal.code == "sequence_too_long"
        assert refusal.details == {"tokens": MAX_TOKENS + 1, "max_tokens": MAX_TOKENS, "item_id": "71"}
        assert (await scene.call("admission.status"))["jobs_minted"] == 0
        assert (await scene.call("admission.status"))["jobs_recent"] == []


async def test_a_text_that_just_fits_is_embedded(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        job = await scene.call("embed.batch", **batch(FITS))
        done = await ended(scene, job["job_id"])
        assert (done["state"], done["items_done"]) == ("done", 71)
        page = await scene.call("embed.result", job_id=job["job_id"])
        assert page["fingerprint"] == scene.pin(LANE)
        assert not any(told["truncated"] for told in page["truncation_disclosures"])
        assert max(page["real_token_counts"]) == MAX_TOKENS
        counters = await scene.call("admission.status")
        assert (counters["jobs_minted"], counters["jobs_completed"], counters["jobs_open"]) == (1, 1, 0)


async def test_a_job_for_a_lane_that_never_ran_waits_for_its_load_and_check(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        job = await scene.call("embed.batch", **batch())
        assert job["state"] == "queued"
        assert (await ended(scene, job["job_id"]))["state"] == "done"
        assert [row.state for row in await scene.stored_checks()] == ["passed"]
