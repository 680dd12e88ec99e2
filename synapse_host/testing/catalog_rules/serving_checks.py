"""Checks of the rules of serving, in the order a request meets them."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from synapse_host.certification.alias_table import Alias, pair_of
from synapse_host.certification.self_check import SelfCheckRow
from synapse_host.lanes.lane_state import LaneState
from synapse_host.testing.catalog_rules.scene import Stage, check, expect
from synapse_host.testing.models.tiny_catalog import EMBED, MAX_TOKENS, OTHER, RERANK, SHY
from synapse_host.testing.workers.stub_lane import stub_model, until

LANE, OTHER_LANE, RANKER = f"{EMBED}-reference", f"{OTHER}-reference", f"{RERANK}-reference"
METAL = {"backend": "metal", "reason": "not_supported_on_platform"}


@check("task")
async def a_model_of_another_task(stage: Stage) -> None:
    async with stage.scene(RERANK) as scene:
        asked = {"requested_task": "embed", "catalog_task": "rerank"}
        for name in (RERANK, RANKER, scene.pin(RANKER)):
            expect(await scene.not_embedded(name), "invalid_request", catalog_id=RERANK, **asked)
        assert (await scene.lane(RANKER)).state is LaneState.UNLOADED


@check("unknown_id")
async def an_id_that_means_nothing(stage: Stage) -> None:
    async with stage.scene() as scene:
        for name in ("absent", f"{SHY}-metal", f"{EMBED}-ane"):
            expect(await scene.not_embedded(name), "unknown_model", model_id=name)


@check("unknown_fingerprint")
async def an_identity_nobody_has(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        refusal = await scene.not_embedded(None, required_fingerprint="0" * 64)
        expect(refusal, "substitution_rejected", lane_id=None, required_fingerprint="0" * 64)
        assert (await scene.lane(OTHER_LANE)).state is LaneState.UNLOADED


@check("lane_fingerprint")
async def a_lane_with_the_identity_of_another(stage: Stage) -> None:
    async with stage.scene(EMBED, OTHER) as scene:
        other = scene.pin(OTHER_LANE)
        refusal = await scene.not_embedded(LANE, required_fingerprint=other)
        expect(refusal, "substitution_rejected", lane_id=LANE, required_fingerprint=other)
        refusal = await scene.not_embedded(EMBED, target_fingerprint=other)
        expect(refusal, "substitution_rejected", lane_id=None, required_fingerprint=other)
        assert (await scene.lane(LANE)).state is LaneState.UNLOADED


@check("no_substitute", "lane_fingerprint")
async def an_equivalent_for_a_pin(stage: Stage) -> None:
    async with stage.scene() as scene:
        pin = scene.pin(LANE)
        scene.host.lanes.put(_free_form("mine"))
        scene.host.aliases.replace(1, [Alias(pair_of("f" * 64, pin), valid_from_ms=0)])
        refusal = await scene.not_embedded("mine", required_fingerprint=pin, allow_equivalent=True)
        expect(refusal, "substitution_rejected", lane_id="mine", required_fingerprint=pin)


@check("backend_runnable", "pinned_backend", "platform_reason")
async def a_backend_that_does_not_run_here(stage: Stage) -> None:
    async with stage.scene(EMBED) as scene:
        refusal = await scene.not_embedded(f"{EMBED}-metal")
        expect(refusal, "backend_unavailable", catalog_id=EMBED, lane_id=f"{EMBED}-metal", backends=[METAL])
        refusal = await scene.refused("rerank.score", model=SHY, query="a", candidates=["b"])
        expect(refusal, "backend_unavailable", catalog_id=SHY, lane_id=None, backends=await scene.reasons(SHY))
        assert (await scene.lane(LANE)).state is LaneState.UNLOADED


@check("first_runnable")
async def a_catalog_id_takes_the_first_backend_that_runs(stage: Stage) -> None:
    async with stage.scene(EMBED) as scene:
        assert (await scene.call("model.status", model_id=EMBED))["model_id"] == LANE


@check("default_for_task", "no_probe")
async def no_model_means_the_default(stage: Stage) -> None:
    async with stage.scene(RERANK, OTHER) as scene:
        answer = await scene.call("rerank.score", query="a", candidates=["b"])
        assert answer["fingerprint"] == scene.pin(RANKER)


@check("pinned_backend")
async def a_fingerprint_takes_its_own_backend(stage: Stage) -> None:
    async with stage.scene(RERANK) as scene:
        cpu = f"{RERANK}-cpu"
        for name in (cpu, scene.pin(cpu)):
            assert (await scene.call("model.status", model_id=name))["model_id"] == cpu


@check("installed")
async def a_model_that_is_not_installed(stage: Stage) -> None:
    async with stage.scene() as scene:
        expect(
            await scene.not_embedded(OTHER),
            "model_not_installed",
            catalog_id=OTHER,
            lane_id=OTHER_LANE,
            download_op="models.download",
            download_job_id=None,
        )


@check("download_named", "installed")
async def a_model_that_is_being_downloaded(stage: Stage) -> None:
    async with stage.scene() as scene:
        # Nobody answers at the address: the job is still open when the request comes, and is cancelled after.
        job = await scene.call("models.download", catalog_id=OTHER)
        refusal = await scene.not_embedded(OTHER_LANE)
        assert (refusal.code, (refusal.details or {})["download_job_id"]) == ("model_not_installed", job["job_id"])
        await scene.call("models.download.cancel", job_id=job["job_id"])


@check("install_whole", "installed")
async def an_install_that_was_found_damaged(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        await scene.lane(OTHER_LANE)
        entry = scene.host.catalog.catalog.entry(OTHER)
        assert entry is not None
        scene.host.downloads.installs.invalidate(entry.files[0].sha256)
        assert (await scene.not_embedded(OTHER_LANE)).code == "model_not_installed"


@check("quarantine")
async def a_lane_whose_worker_failed_twice(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(OTHER_LANE)
        lane.strikes.fault()
        lane.strikes.fault()
        refusal = await scene.not_embedded(OTHER)
        expect(refusal, "engine_crashed", lane_id=OTHER_LANE, quarantined=True)
        assert 0 < (refusal.retry_after_ms or 0) <= 600_000
        assert refusal.safe_to_retry


@check("quarantine", "no_probe")
async def a_worker_that_dies_twice_without_serving(stage: Stage) -> None:
    async with stage.scene(RERANK) as scene:
        lane, asked = await scene.lane(RANKER), {"model": RERANK, "query": "a", "candidates": ["b"]}
        for _ in range(2):
            await lane.load()
            pid = lane.health.worker_pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: lane.state is not LaneState.READY)
        # The entry has another backend; it does not take the place of the one that was chosen.
        expect(await scene.refused("rerank.score", **asked), "engine_crashed", lane_id=RANKER, quarantined=True)
        await scene.call("model.unload", model_id=RANKER)
        assert (await scene.call("rerank.score", **asked))["fingerprint"] == scene.pin(RANKER)


@check("failed_check")
async def a_lane_whose_check_failed(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane, checks = await scene.lane(OTHER_LANE), scene.host.catalog.checks
        key = checks.row(lane).key
        checks.restore(SelfCheckRow(key, "failed", "case row-3: cosine 0.5", {}, 1))
        expect(
            await scene.not_embedded(OTHER),
            "self_check_failed",
            model_id=OTHER_LANE,
            backend="reference",
            check_id=key.check_id,
            reason="case row-3: cosine 0.5",
        )
        assert lane.state is LaneState.UNLOADED


@check("no_probe")
async def a_lane_serves_without_a_probe(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        answer = await scene.embed(OTHER_LANE)
        assert answer["fingerprint"] == scene.pin(OTHER_LANE)


@check("length", "no_probe")
async def a_text_past_the_limit(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        fits = "a " * (MAX_TOKENS - 2)
        answer = await scene.embed(OTHER_LANE, fits)
        assert answer["real_token_counts"] == [MAX_TOKENS]
        refusal = await scene.refused(
            "embed.batch", model=OTHER_LANE, items=[{"id": "fits", "text": fits}, {"id": "long", "text": fits + "a"}]
        )
        expect(refusal, "sequence_too_long", tokens=MAX_TOKENS + 1, max_tokens=MAX_TOKENS, item_id="long")


@check("length", "no_probe")
async def a_pair_past_the_limit(stage: Stage) -> None:
    async with stage.scene(RERANK) as scene:
        query = "a " * (MAX_TOKENS - 4)
        answer = await scene.call("rerank.score", model=RANKER, query=query, candidates=["b"])
        assert answer["real_token_counts"] == [MAX_TOKENS]
        refusal = await scene.refused("rerank.score", model=RANKER, query=query, candidates=["b", "b b"])
        expect(refusal, "sequence_too_long", tokens=MAX_TOKENS + 1, max_tokens=MAX_TOKENS, item_id="1")
        refusal = await scene.refused("rerank.score", model=RANKER, query=query + query, candidates=["b"])
        assert refusal.code == "sequence_too_long"


@check("switched_on")
async def a_setting_gives_an_entry_its_lane(stage: Stage) -> None:
    async with stage.scene(switched_on=["vulkan"]) as scene:
        refusal = await scene.refused("rerank.score", model=f"{SHY}-vulkan", query="a", candidates=["b"])
        assert refusal.code != "unknown_model"
        assert [row["lane_id"] for row in (await scene.row(SHY))["backends"]] == [f"{SHY}-vulkan"]


@check("pin", "no_probe")
async def a_pin_that_was_tampered_with(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = stage.changed(folder)
        tiny.change({"fingerprint": "1" * 64}, OTHER, "reference")
        async with stage.scene(OTHER, tiny=tiny) as scene:
            refusal = await scene.not_embedded(OTHER_LANE)
            assert refusal.code == "artifact_invalid"
            details = refusal.details or {}
            assert (details["model_id"], details["expected_fingerprint"]) == (OTHER_LANE, "1" * 64)
            assert details["actual_fingerprint"] == stage_pin(stage)
            assert not (await scene.lane(OTHER_LANE)).health.worker_pid


@check("pin", "no_probe")
async def a_document_that_was_tampered_with(stage: Stage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = stage.changed(folder)
        tiny.change({"max_tokens": MAX_TOKENS - 1}, OTHER, "reference")
        async with stage.scene(OTHER, tiny=tiny) as scene:
            refusal = await scene.not_embedded(OTHER_LANE)
            assert refusal.code == "artifact_invalid"
            assert (refusal.details or {})["expected_fingerprint"] == stage_pin(stage)


def stage_pin(stage: Stage) -> str:
    """The pin of the lane the tampering is done to, as the sound document has it."""
    found = stage.tiny.catalog().lane(OTHER_LANE)
    assert found is not None
    return found[1].fingerprint


def _free_form(model_id: str) -> Any:
    """Enough of a lane to be found and refused."""

    async def nothing() -> None:
        pass

    model = replace(stub_model(), model_id=model_id, task="embed", fingerprint="f" * 64)
    return SimpleNamespace(
        model=model, holders=[], close=nothing, refuse_quarantined=lambda: None, refresh_health=lambda: None
    )
