"""Models the settings name: loaded at start, skipped with one WARN, or a start refused; and what is not restored."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import StartRefused
from synapse_host.lanes.resolution import why_not_restored
from synapse_host.testing.catalog_rules.scene import Stage
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, SHY, write_tiny_catalog
from synapse_host.testing.workers.stub_lane import stub_model

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


def directory(stage: Stage) -> Path:
    entry = stage.tiny.catalog().entry(OTHER)
    assert entry is not None
    return stage.tiny.source(entry, "model.safetensors").parent


@pytest.mark.parametrize("name", [EMBED, f"{EMBED}-metal", f"{EMBED}-ane", f"{SHY}-vulkan"])
async def test_an_id_of_the_catalog_stops_the_start(name: str, stage: Stage) -> None:
    config = f'[[preload.models]]\nmodel_id = "{name}"\nsource = "file"\npath = "/x"\nengine = "cpu"\n'
    refused: list[BaseException] = []
    try:
        async with stage.scene(config=config):
            pass
    except BaseExceptionGroup as group:
        refused = [error for error in _flat(group) if isinstance(error, StartRefused)]
    assert [name in str(error) for error in refused] == [True]


def _flat(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [inner for each in error.exceptions for inner in _flat(each)]
    return [error]


async def test_what_is_wrong_is_one_warning_and_the_rest_is_loaded(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    good = {"model_id": "good", "source": "file", "path": str(directory(stage)), "engine": "reference"}
    entries = (
        {"model_id": "typo", "source": "file", "path": "/x", "engin": "reference"},
        {"model_id": "ort", "source": "file", "path": str(directory(stage)), "engine": "ort"},
        {"model_id": "absent", "source": "file", "path": "/nonexistent", "engine": "reference"},
        good,
    )
    async with stage.scene() as scene:
        with caplog.at_level(logging.WARNING, "synapse_host.operations.preloading"), anyio.fail_after(60):
            await scene.host.preloads.run(entries)
        assert [row["model_id"] for row in (await scene.call("models.list"))["models"]] == ["good"]
        assert (await scene.call("model.status", model_id="good"))["state"] == "ready"
    warned = [record.getMessage() for record in caplog.records if "preload" in record.getMessage()]
    assert [line.split("'")[1] for line in warned] == ["typo", "ort", "absent"]


async def test_a_stored_model_that_may_not_serve_any_more_is_not_restored(stage: Stage) -> None:
    catalog = stage.tiny.catalog()
    model = replace(stub_model(), model_id="mine", task="embed", backend="reference")
    assert why_not_restored(model, catalog) is None
    for bad in (
        replace(model, model_id=f"{EMBED}-ane"),
        replace(model, backend="llama"),
        replace(model, task="rerank", backend="ort"),
    ):
        assert why_not_restored(bad, catalog) is not None
    assert why_not_restored(replace(model, task="generate", backend="llama"), catalog) is None
