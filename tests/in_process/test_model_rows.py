"""Which fields a row of models.list has and which it leaves out: absence is no value (wire contract section 5)."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.operations.load_manifest import ModelLoadParams, load_plan
from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import OTHER, RERANK, write_tiny_catalog

pytestmark = pytest.mark.anyio
ALWAYS = {
    "model_id", "state", "task", "backend", "engine", "fingerprints", "max_tokens", "max_tokens_source", "dtype",
    "device_class", "rows_computed", "self_check", "recommended_batch", "certified",
}  # fmt: skip
OF_CATALOG = {"catalog_id", "serving_admission"}
WHILE_LOADED = {"bucket_ladder", "warm_load_cost_hint_ms"}


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


async def row_of(scene: Scene, model_id: str) -> dict[str, Any]:
    rows = (await scene.call("models.list"))["models"]
    return next(row for row in rows if row["model_id"] == model_id)


async def load_free_form(scene: Scene, stage: Stage, catalog_id: str, **params: Any) -> None:
    entry = stage.tiny.catalog().entry(catalog_id)
    assert entry is not None
    path = str(stage.tiny.source(entry, "model.safetensors").parent)
    given = ModelLoadParams(source="file", path=path, engine="reference", model_id="mine", **params)
    await scene.host.registrar.register(load_plan(given).request, lambda state, **facts: None)


async def test_a_lane_of_the_catalog(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = f"{OTHER}-reference"
        row = await row_of(scene, lane)
        assert set(row) == ALWAYS | OF_CATALOG
        assert (row["max_tokens_source"], row["self_check"]["state"], set(row["self_check"])) == (
            "catalog_unloaded",
            "pending",
            {"state", "check_id"},
        )
        await scene.embed(lane)
        row = await row_of(scene, lane)
        assert set(row) == ALWAYS | OF_CATALOG | WHILE_LOADED | {"dims"}
        assert (row["max_tokens_source"], row["state"], row["dims"]) == ("worker_bucket", "ready", 24)
        assert set(row["self_check"]) == {"state", "check_id", "checked_at_ms", "evidence"}
        await scene.call("model.unload", model_id=lane)
        # What a load took is known from then on; what only a worker says is not.
        assert set(await row_of(scene, lane)) == ALWAYS | OF_CATALOG | {"warm_load_cost_hint_ms"}


async def test_a_reranker_has_no_width(stage: Stage) -> None:
    async with stage.scene(RERANK) as scene:
        lane = f"{RERANK}-reference"
        await scene.call("rerank.score", model=lane, query="a", candidates=["b"])
        assert set(await row_of(scene, lane)) == ALWAYS | OF_CATALOG | WHILE_LOADED


async def test_a_model_an_operator_loaded(stage: Stage) -> None:
    async with stage.scene() as scene:
        await load_free_form(scene, stage, OTHER, pooling="cls")
        row = await row_of(scene, "mine")
        assert set(row) == ALWAYS | WHILE_LOADED | {"dims"}
        assert (row["self_check"], row["certified"]) == ({"state": "not_applicable"}, False)
        await scene.call("model.unload", model_id="mine")
        row = await row_of(scene, "mine")
        assert set(row) == ALWAYS | {"warm_load_cost_hint_ms"}
        assert row["max_tokens_source"] == "catalog_unloaded"
