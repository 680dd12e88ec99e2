"""The serving check order (readings, section 1): of two things wrong with one request, the first is told.

Two pairs have no request: an id nobody knows is of no task, and a lane that is certified takes texts of any length.
"""

from __future__ import annotations

import pytest

from synapse_host.admission.turn import Turn
from synapse_host.certification.self_check import SelfCheckRow
from synapse_host.testing.catalog_rules.scene import Scene, Stage
from synapse_host.testing.models.tiny_catalog import EMBED, MAX_TOKENS, OTHER, RERANK, write_tiny_catalog

pytestmark = pytest.mark.anyio
LANE = f"{OTHER}-reference"
LONG = "a " * MAX_TOKENS
NOBODYS = "0" * 64


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(write_tiny_catalog(tmp_path_factory.mktemp("catalog") / "tiny"))


async def quarantine(scene: Scene) -> None:
    lane = await scene.lane(LANE)
    lane.strikes.fault()
    lane.strikes.fault()


async def fail_check(scene: Scene) -> None:
    checks = scene.host.catalog.checks
    checks.restore(SelfCheckRow(checks.row(await scene.lane(LANE)).key, "failed", "wrong", {}, 1))


async def test_task_before_fingerprint(stage: Stage) -> None:
    async with stage.scene() as scene:
        assert (await scene.not_embedded(RERANK, required_fingerprint=NOBODYS)).code == "invalid_request"


async def test_id_before_fingerprint(stage: Stage) -> None:
    async with stage.scene() as scene:
        refusal = await scene.not_embedded("absent", required_fingerprint=NOBODYS)
        assert refusal.code == "unknown_model"
        # Of what could be asked instead, only models that embed.
        assert EMBED in refusal.message
        assert RERANK not in refusal.message


async def test_fingerprint_before_backend(stage: Stage) -> None:
    async with stage.scene() as scene:
        refusal = await scene.not_embedded(f"{EMBED}-metal", required_fingerprint=scene.pin(LANE))
        assert refusal.code == "substitution_rejected"


async def test_fingerprint_before_the_epoch_and_the_epoch_before_the_backend(stage: Stage) -> None:
    async with stage.scene() as scene:
        lane = f"{EMBED}-metal"
        assert (await scene.not_embedded(lane, required_epoch=9)).code == "migration_required"
        refusal = await scene.not_embedded(lane, required_epoch=9, required_fingerprint=NOBODYS)
        assert refusal.code == "substitution_rejected"


async def test_backend_before_install(stage: Stage) -> None:
    async with stage.scene() as scene:
        assert (await scene.not_embedded(f"{EMBED}-metal")).code == "backend_unavailable"


async def test_install_before_quarantine(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await quarantine(scene)
        scene.host.downloads.installs.withdraw(OTHER)
        assert (await scene.not_embedded(LANE)).code == "model_not_installed"


async def test_quarantine_before_the_failed_check(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await quarantine(scene)
        await fail_check(scene)
        refusal = await scene.not_embedded(LANE)
        assert (refusal.code, (refusal.details or {})["quarantined"]) == ("engine_crashed", True)


async def test_the_failed_check_before_length(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await fail_check(scene)
        assert (await scene.not_embedded(LANE, LONG)).code == "self_check_failed"


async def test_length_before_admission(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await scene.embed(LANE)
        lane = await scene.lane(LANE)
        # The device is taken for longer than the request waits for it.
        lane.turns.ask(held := Turn(lambda: None, estimate_ms=60_000))
        try:
            assert (await scene.not_embedded(LANE, "a", max_queue_ms=1)).code == "deadline_exceeded"
            assert (await scene.not_embedded(LANE, LONG, max_queue_ms=1)).code == "sequence_too_long"
        finally:
            lane.turns.end(held)


async def test_every_check_before_the_load(stage: Stage) -> None:
    async with stage.scene(OTHER, EMBED) as scene:
        await fail_check(scene)
        for model, constraints in ((LANE, {}), (EMBED, {"required_fingerprint": NOBODYS}), (f"{EMBED}-metal", {})):
            await scene.not_embedded(model, **constraints)
        assert scene.workers_started == 0


async def test_whoever_starts_a_load_has_its_own_deadline_for_load_and_check(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(LANE)
        # The check cannot begin while somebody else has the device.
        lane.turns.ask(held := Turn(lambda: None))
        assert (await scene.not_embedded(LANE, deadline_ms=1500)).code == "deadline_exceeded"
        lane.turns.end(held)
        await scene.embed(LANE)
