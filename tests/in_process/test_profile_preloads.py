"""Preloads that name a profile: checked against published figures in the place of a probe, and refused by them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.certification.self_check_fixtures import sealed
from synapse_host.errors import InvalidRequest
from synapse_host.host_catalog import HostCatalog
from synapse_host.models.profiles import ProfileName, read_profile
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.testing.catalog_rules.profile_checks import MINE, PROFILE, settings_of
from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import OTHER, RERANK, write_tiny_catalog

pytestmark = pytest.mark.anyio
ENGINE = read_profile(PROFILE).engine


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


async def preloaded(scene: Scene) -> None:
    with anyio.fail_after(60):
        await scene.host.preloads.run(scene.host.settings.preload.models)


async def row(scene: Scene) -> dict[str, Any]:
    rows: list[dict[str, Any]] = (await scene.call("models.list"))["models"]
    return next(row for row in rows if row["model_id"] == MINE)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of preloads."""
    return [record.getMessage() for record in caplog.records if record.name.endswith("preloading")]


async def test_a_model_of_a_profile_serves_without_a_probe(stage: Stage) -> None:
    async with stage.scene(config=settings_of(stage.tiny)) as scene:
        await preloaded(scene)
        started = scene.workers_started
        assert (await scene.embed(MINE))["dims"] == 24
        # The second was the reference's, for the figures nobody has published.
        assert scene.workers_started == started == 2
        shown = await row(scene)
        assert (shown["profile"], shown["certified"], shown["self_check"]["state"]) == (PROFILE, True, "passed")
        evidence = shown["self_check"]["evidence"]
        assert (evidence["cases"], evidence["min_cosine"] > 0.999) == (4, True)
        (reported,) = (await scene.call("probe.report"))["lanes"]
        assert (reported["certification_required"], reported["certification_status"]) == (False, "not_required")
        counted = await scene.call("admission.status")
        assert (counted["certified_lanes"], counted["lanes"][0]["self_check"]["state"]) == (0, "passed")
        refusal = await scene.refused("probe.start", models=[MINE])
        assert (refusal.code, refusal.details) == ("invalid_request", {"model_id": MINE, "profile": PROFILE})


async def test_without_a_profile_the_probe_stays(stage: Stage) -> None:
    async with stage.scene(config=settings_of(stage.tiny, None)) as scene:
        await preloaded(scene)
        assert (await scene.not_embedded(MINE)).code == "probe_required"
        assert (await row(scene))["self_check"] == {"state": "not_applicable"}


async def test_a_job_needs_no_probe_either(stage: Stage) -> None:
    async with stage.scene(config=settings_of(stage.tiny)) as scene:
        await preloaded(scene)
        items = [{"id": str(number), "text": "a b"} for number in range(65)]
        job = await scene.call("embed.batch", model=MINE, items=items, request_key="k")
        with anyio.fail_after(60):
            while (status := await scene.call("model.status", job_id=job["job_id"]))["state"] in ("queued", "running"):
                await anyio.lowlevel.checkpoint()
        assert status["state"] == "done"


async def test_wrong_numbers_refuse_name_the_profile_and_are_kept(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny, home = stage.changed(str(tmp_path)), tmp_path / "home"
    tiny.change_figures(OTHER)
    async with stage.scene(tiny=tiny, home=home, config=settings_of(tiny)) as scene:
        with caplog.at_level(logging.WARNING, "synapse_host.operations.preloading"):
            await preloaded(scene)
        refusal = await scene.not_embedded(MINE)
        assert refusal.code == "self_check_failed"
        assert PROFILE in refusal.message
        details = refusal.details or {}
        assert (details["model_id"], details["profile"], details["backend"]) == (MINE, PROFILE, "reference")
        assert "cosine" in details["reason"]
    (warned,) = warnings(caplog)
    assert warned.startswith(f"preload '{MINE}' is loaded and does not serve: self_check_failed: ")
    async with stage.scene(tiny=tiny, home=home, config=settings_of(tiny)) as scene:
        assert (await scene.not_embedded(MINE)).details == details
        assert scene.workers_started == 0
    # Other figures have another seal, and with it another key.
    async with stage.scene(home=home, config=settings_of(stage.tiny)) as scene:
        await preloaded(scene)
        assert (await scene.embed(MINE))["dims"] == 24


@pytest.mark.parametrize(("name", "cases"), [(OTHER, 4), (RERANK, 7)])
async def test_both_sides_of_the_boundary_are_held_against_the_reference(
    stage: Stage, name: str, cases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = {OTHER: "embed", RERANK: "rerank"}[name]
    config = settings_of(stage.tiny, f"{name}.{ENGINE}", catalog_id=name, task=task)
    async with stage.scene(config=config) as scene:
        await preloaded(scene)
        assert (await row(scene))["self_check"]["evidence"]["cases"] == cases
    real = HostCatalog._reference_figures

    async def wrong(self: HostCatalog, model: RegisteredModel, rows: Sequence[Sequence[int]]) -> list[list[float]]:
        assert [len(each) for each in rows] == [127, 128, 129]
        first, second, last = await real(self, model, rows)
        return [list(first), list(second), [0.5 - figure for figure in last]]

    monkeypatch.setattr(HostCatalog, "_reference_figures", wrong)
    async with stage.scene(config=config) as scene:
        await preloaded(scene)
        checked = (await row(scene))["self_check"]
        assert (checked["state"], checked["reason"][:19]) == ("failed", "case boundary-129: ")


async def test_a_reranker_that_reads_other_tokens_is_told_so_before_it_computes(stage: Stage, tmp_path: Path) -> None:
    tiny = stage.changed(str(tmp_path))
    figures = tiny.document.with_name("fixtures.json")
    document = json.loads(figures.read_text("utf-8"))
    document["models"][RERANK] = sealed({**document["models"][RERANK], "readout": {"yes": 7, "no": 8}})
    figures.write_text(json.dumps(document), encoding="utf-8")
    config = settings_of(tiny, f"{RERANK}.{ENGINE}", catalog_id=RERANK, task="rerank")
    async with stage.scene(tiny=tiny, config=config) as scene:
        await preloaded(scene)
        checked = (await row(scene))["self_check"]
        assert checked["state"] == "failed"
        assert (
            checked["reason"] == "the probability is read from tokens (9693, 2152) (yes, no), the fixture says (7, 8)"
        )


@pytest.mark.parametrize(
    ("profile", "reason"),
    [(f"absent.{ENGINE}", "no reference for profile"), (f"{RERANK}.{ENGINE}", "is for task 'rerank'")],
)
async def test_a_profile_without_its_reference_refuses(stage: Stage, profile: str, reason: str) -> None:
    async with stage.scene(config=settings_of(stage.tiny, profile)) as scene:
        await preloaded(scene)
        refusal = await scene.not_embedded(MINE)
        assert (refusal.code, (refusal.details or {})["profile"]) == ("self_check_failed", profile)
        assert reason in refusal.message


async def test_figures_that_are_not_what_their_seal_says_refuse(stage: Stage, tmp_path: Path) -> None:
    tiny = stage.changed(str(tmp_path))
    figures = tiny.document.with_name("fixtures.json")
    document = json.loads(figures.read_text("utf-8"))
    document["models"][OTHER]["cases"][0]["ids"][0] += 1
    figures.write_text(json.dumps(document), encoding="utf-8")
    async with stage.scene(OTHER, tiny=tiny, config=settings_of(tiny)) as scene:
        await preloaded(scene)
        refusal = await scene.not_embedded(MINE)
        assert refusal.code == "self_check_failed"
        assert "not what their seal says" in refusal.message
        # A lane of the catalog is not found at fault for it: that would be kept under a key that outlives the repair.
        assert (await scene.not_embedded(f"{OTHER}-reference")).code == "engine_crashed"
        assert [check.catalog_id for check in await scene.stored_checks()] == [PROFILE]


@pytest.mark.parametrize("profile", [OTHER, f"{OTHER}.owned-metal", f".{ENGINE}"])
async def test_a_name_that_is_no_profile_of_the_engine_is_one_warning(
    stage: Stage, profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.scene(config=settings_of(stage.tiny, profile)) as scene:
        with caplog.at_level(logging.WARNING, "synapse_host.operations.preloading"):
            await preloaded(scene)
        assert (await scene.call("models.list"))["models"] == []
    (warned,) = warnings(caplog)
    assert warned.startswith(f"preload '{MINE}' is skipped: invalid_request: profile ")


async def test_only_the_settings_may_name_a_profile(stage: Stage) -> None:
    async with stage.scene() as scene:
        refusal = await scene.refused("model.load", source="file", path="/x", engine="reference", profile=PROFILE)
        assert refusal.code == "invalid_request"
        assert "params.profile" in refusal.message


async def test_a_profile_the_settings_name_no_more_is_gone_after_a_restart(stage: Stage, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with stage.scene(home=home, config=settings_of(stage.tiny)) as scene:
        await preloaded(scene)
        assert (await scene.embed(MINE))["dims"] == 24
    async with stage.scene(home=home, config=settings_of(stage.tiny)) as scene:
        # Taken up from the store, before the preload is through: what was found holds.
        assert (await scene.embed(MINE))["dims"] == 24
    async with stage.scene(home=home) as scene:
        assert (await scene.not_embedded(MINE)).code == "probe_required"


def test_the_last_dot_parts_a_profile() -> None:
    assert read_profile("qwen3-embedding-0.6b.owned-cuda") == ProfileName("qwen3-embedding-0.6b", "owned-cuda")
    assert str(read_profile("gte-modernbert-base.owned-metal")) == "gte-modernbert-base.owned-metal"
    with pytest.raises(InvalidRequest, match="not written"):
        read_profile("gte")
