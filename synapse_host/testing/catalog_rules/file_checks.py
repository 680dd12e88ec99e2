"""Checks of what a lane does about its files, its pin and its numbers when it is loaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from synapse_host.admission.turn import Turn
from synapse_host.lanes.lane_state import LaneState
from synapse_host.testing.catalog_rules.scene import Scene, Stage, check, expect
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, spoil
from synapse_host.testing.workers.stub_lane import until

OTHER_LANE = f"{OTHER}-reference"
_FILE_KEYS = {"file", "expected_sha256", "actual_sha256", "expected_size", "actual_size", "recovery_op"}


async def bad_file(scene: Scene, path: str, *, actual: bool) -> None:
    """The lane is refused for its file; the install is damaged, and that of another entry is not."""
    refusal = await scene.not_embedded(OTHER_LANE)
    details = refusal.details or {}
    assert refusal.code == "artifact_invalid", refusal.to_wire()
    assert set(details) == _FILE_KEYS
    assert (details["file"], details["recovery_op"]) == (path, "models.download")
    assert (details["actual_sha256"] is not None) is actual
    assert details["actual_sha256"] != details["expected_sha256"]


async def set_aside(scene: Scene) -> None:
    """What was installed from damaged content is stale, nothing else is, and the next request is told to download."""
    rows = {row["id"]: row["install_state"] for row in (await scene.call("models.catalog"))["models"]}
    assert (rows[OTHER], rows[EMBED]) == ("stale", "installed")
    assert (await scene.not_embedded(OTHER_LANE)).code == "model_not_installed"


@check("pin", "no_probe")
async def an_engine_that_is_not_the_one_pinned(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = stage.changed(folder)
        tiny.change_engine("reference", {"version": "0.0.1"})
        async with stage.scene(OTHER, tiny=tiny) as scene:
            refusal = await scene.not_embedded(OTHER_LANE)
            expect(
                refusal,
                "artifact_invalid",
                model_id=OTHER_LANE,
                expected_fingerprint=scene.pin(OTHER_LANE),
                actual_fingerprint=stage_pin(stage),
            )


@check("unpinned_flags", "no_probe", "self_check")
async def a_flag_that_no_pin_covers(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = stage.changed(folder)
        tiny.change_engine("reference", {"build_flags": {}, "unpinned_flags": ["bucket_policy"]})
        async with stage.scene(OTHER, tiny=tiny) as scene:
            answer = await scene.embed(OTHER_LANE)
            assert answer["fingerprint"] == scene.pin(OTHER_LANE) != stage_pin(stage)
            row = scene.host.catalog.checks.row(await scene.lane(OTHER_LANE))
            # The check was made for this very flag: another one is checked anew.
            assert row.state == "passed"
            assert "bucket_policy" in row.key.engine.build_flags


@check("file_here", "damage_reported", "installed", "install_whole", "install_state", "no_probe")
async def a_file_that_is_missing(stage: Stage) -> None:
    async with stage.scene(EMBED, OTHER) as scene:
        await scene.lane(OTHER_LANE)
        scene.blob(OTHER, "model.safetensors").unlink()
        await bad_file(scene, "model.safetensors", actual=False)
        assert scene.workers_started == 0
        await set_aside(scene)


@check("file_here", "damage_reported", "installed", "install_whole", "install_state", "no_probe")
async def a_file_that_was_cut(stage: Stage) -> None:
    async with stage.scene(EMBED, OTHER) as scene:
        path = scene.blob(OTHER, "model.safetensors")
        whole = path.read_bytes()
        path.unlink()
        path.write_bytes(whole[:-1])
        await bad_file(scene, "model.safetensors", actual=True)
        assert scene.workers_started == 0
        await set_aside(scene)


@check("file_digest", "damage_reported", "installed", "install_whole", "install_state", "no_probe")
async def a_file_of_zeros(stage: Stage) -> None:
    async with stage.scene(EMBED, OTHER) as scene:
        spoil(scene.blob(OTHER, "config.json"))
        await bad_file(scene, "config.json", actual=True)
        assert scene.workers_started == 0
        await set_aside(scene)


@check("load_explained", "damage_reported", "installed", "install_whole", "install_state", "no_probe")
async def weights_of_zeros_are_found_by_the_worker(stage: Stage) -> None:
    async with stage.scene(EMBED, OTHER) as scene:
        spoil(scene.blob(OTHER, "model.safetensors"))
        await bad_file(scene, "model.safetensors", actual=True)
        await set_aside(scene)


@check("files_held", "file_here")
async def files_are_held_while_the_lane_is_loaded(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(OTHER_LANE)
        await lane.load()
        digest = scene.blob(OTHER, "model.safetensors").name
        await anyio.to_thread.run_sync(_take_pins_away, scene, digest)
        await anyio.to_thread.run_sync(_collect, scene, digest)
        assert scene.blob(OTHER, "model.safetensors").exists()


def _take_pins_away(scene: Scene, digest: str) -> None:
    cache = scene.host.downloads.cache
    found = cache.find(digest)
    assert found is not None
    for owner in found.pins:
        cache.unpin(digest, owner)


def _collect(scene: Scene, digest: str) -> None:
    """Mark, then remove what was marked an hour ago."""
    for now_ms in (0, 3_600_000):
        scene.host.downloads.cache.collect(now_ms=now_ms, grace_ms=0, digest=digest)


@check("self_check", "failed_check", "no_probe")
async def a_lane_whose_numbers_are_wrong(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = stage.changed(folder)
        tiny.change_figures(OTHER)
        async with stage.scene(OTHER, tiny=tiny) as scene:
            lane = await scene.lane(OTHER_LANE)
            row = scene.host.catalog.checks.row(lane)
            refusal = await scene.not_embedded(OTHER_LANE)
            assert refusal.code == "self_check_failed", refusal.to_wire()
            details = refusal.details or {}
            assert (details["model_id"], details["backend"]) == (OTHER_LANE, "reference")
            assert (details["check_id"], "cosine" in details["reason"]) == (row.key.check_id, True)
            await until(lambda: lane.state is LaneState.UNLOADED)


@check("self_check_kept", "self_check", "failed_check", "no_probe")
async def a_failed_check_is_kept_over_a_restart(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny, home = stage.changed(folder), Path(folder) / "home"
        tiny.change_figures(OTHER)
        async with stage.scene(OTHER, tiny=tiny, home=home) as scene:
            assert (await scene.not_embedded(OTHER_LANE)).code == "self_check_failed"
        async with stage.scene(tiny=tiny, home=home) as scene:
            lane = await scene.lane(OTHER_LANE)
            assert scene.host.catalog.checks.row(lane).state == "failed"
            assert (await scene.not_embedded(OTHER_LANE)).code == "self_check_failed"
            assert lane.cold_load_ms is None


@check("self_check_waited_for", "self_check", "no_probe")
async def whoever_comes_during_a_check_waits_for_it(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(OTHER_LANE)
        await lane.load()
        # Somebody else has the device: the check cannot begin, and nobody is served before it ended.
        lane.turns.ask(held := Turn(lambda: None))
        refusal = await scene.not_embedded(OTHER_LANE, deadline_ms=200)
        assert (refusal.code, refusal.retry_after_ms) == ("model_loading", 250), refusal.to_wire()
        lane.turns.end(held)
        await scene.embed(OTHER_LANE)
        assert scene.host.catalog.checks.row(lane).state == "passed"


@check("self_check_ceiling", "self_check", "no_probe")
async def a_check_that_computes_too_long(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane, checks = await scene.lane(OTHER_LANE), scene.host.catalog.checks
        checks.ceiling_ms = 0.0
        refusal = await scene.not_embedded(OTHER_LANE)
        assert (refusal.code, refusal.error_class, refusal.retry_after_ms) == ("engine_crashed", "transient", 250)
        assert checks.row(lane).state == "pending"
        assert lane.strikes.count == 0
        checks.ceiling_ms = 60_000.0
        await scene.embed(OTHER_LANE)


def stage_pin(stage: Stage) -> str:
    """The pin of the lane as the sound document has it."""
    found = stage.tiny.catalog().lane(OTHER_LANE)
    assert found is not None
    return found[1].fingerprint
