"""Checks of the methods around the catalog: listings, unloading, reserved ids, removing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from synapse_host.errors import InvalidRequest
from synapse_host.jobs.submission import Submission
from synapse_host.testing.catalog_rules.scene import Scene, Stage, check, expect
from synapse_host.testing.models.tiny_catalog import EMBED, OTHER, RERANK, SHY

LANE, OTHER_LANE = f"{EMBED}-reference", f"{OTHER}-reference"
#: Every derived id, declared or not, and the entry it belongs to.
DERIVED = (f"{EMBED}-metal", f"{EMBED}-ane", f"{SHY}-vulkan", LANE)


def entry_of(name: str) -> str:
    return next(entry for entry in (EMBED, SHY) if name.startswith(entry))


async def listed(scene: Scene, **filters: Any) -> list[str]:
    return [row["id"] for row in (await scene.call("models.catalog", **filters))["models"]]


@check("unload_by_lane")
async def a_catalog_id_is_not_unloaded(stage: Stage) -> None:
    async with stage.scene(EMBED) as scene:
        refusal = await scene.refused("model.unload", model_id=EMBED)
        expect(refusal, "invalid_request", catalog_id=EMBED, lane_ids=scene.lane_ids(EMBED))
        assert LANE in scene.lane_ids(EMBED)


@check("unknown_id")
async def an_undeclared_lane_is_not_unloaded(stage: Stage) -> None:
    async with stage.scene(EMBED) as scene:
        refusal = await scene.refused("model.unload", model_id=f"{EMBED}-vulkan")
        expect(refusal, "unknown_model", model_id=f"{EMBED}-vulkan")
        assert (await scene.refused("model.status", model_id=f"{EMBED}-vulkan")).code == "unknown_model"


@check("unload_held")
async def a_held_lane_is_not_unloaded(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(OTHER_LANE)
        with lane.lease():
            refusal = await scene.refused("model.unload", model_id=OTHER_LANE)
        expect(refusal, "model_in_use", catalog_id=OTHER, holders=[{"kind": "request", "lease_id": "lease-1"}])


@check("remove_held")
async def a_held_entry_is_not_removed(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        lane = await scene.lane(OTHER_LANE)
        kinds: list[dict[str, str]] = [
            {"kind": "request", "lease_id": "lease-1"},
            {"kind": "job", "job_id": "embed-1"},
            {"kind": "self_check", "check_id": "c" * 64},
        ]
        with lane.lease(), lane.lease(kinds[1]), lane.lease(kinds[2]):
            expect(
                await scene.refused("models.remove", catalog_id=OTHER), "model_in_use", catalog_id=OTHER, holders=kinds
            )
        await lane.load()
        loaded = [{"kind": "loaded", "model_id": OTHER_LANE}]
        refusal = await scene.refused("models.remove", catalog_id=OTHER)
        expect(refusal, "model_in_use", catalog_id=OTHER, holders=loaded)
        await scene.call("model.unload", model_id=OTHER_LANE)
        assert len((await scene.call("models.remove", catalog_id=OTHER))["removed_manifests"]) == 1


@check("remove_held_by_job")
async def an_entry_with_a_waiting_job_is_not_removed(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        ledger, model = scene.host.jobs.ledger, (await scene.lane(OTHER_LANE)).model
        waiting = Submission("key", "d" * 64, OTHER_LANE, model.fingerprint, {}, ["a"], ["a b"])
        job = (await ledger.admit(waiting)).job
        refusal = await scene.refused("models.remove", catalog_id=OTHER)
        expect(refusal, "model_in_use", catalog_id=OTHER, holders=[{"kind": "job", "job_id": job.job_id}])
        assert job.job_pk is not None
        await ledger.fail(job.job_pk, InvalidRequest("it is not to be computed"))
        assert len((await scene.call("models.remove", catalog_id=OTHER))["removed_manifests"]) == 1


@check("removal_forgets", "self_check", "no_probe")
async def what_a_check_found_goes_with_the_install(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        checks, lane = scene.host.catalog.checks, await scene.lane(OTHER_LANE)
        await scene.embed(OTHER_LANE)
        assert checks.row(lane).state == "passed"
        await scene.call("model.unload", model_id=OTHER_LANE)
        await scene.call("models.remove", catalog_id=OTHER)
        assert checks.row(lane).state == "pending"
        assert await scene.stored_checks() == []


@check("reserved_for_download")
async def lanes_are_not_downloaded_or_removed(stage: Stage) -> None:
    async with stage.scene() as scene:
        for method in ("models.download", "models.remove"):
            for name in DERIVED:
                details = {"model_id": name, "catalog_id": entry_of(name)}
                expect(await scene.refused(method, catalog_id=name), "invalid_request", **details)
            expect(await scene.refused(method, catalog_id="absent"), "unknown_model", model_id="absent")


@check("download_runnable")
async def what_runs_nowhere_is_not_downloaded(stage: Stage) -> None:
    async with stage.scene() as scene:
        refusal = await scene.refused("models.download", catalog_id=SHY)
        expect(refusal, "backend_unavailable", catalog_id=SHY, lane_id=None, backends=await scene.reasons(SHY))


@check("reserved_for_load")
async def a_model_is_not_loaded_under_an_id_of_the_catalog(stage: Stage) -> None:
    async with stage.scene() as scene:
        for name in (EMBED, *DERIVED):
            refusal = await scene.refused("model.load", source="file", path="/x", engine="cpu", model_id=name)
            expect(refusal, "invalid_request", model_id=name, catalog_id=entry_of(name))


@check("reserved_for_probe")
async def a_lane_of_the_catalog_is_not_probed(stage: Stage) -> None:
    async with stage.scene(EMBED) as scene:
        for name in (EMBED, *DERIVED):
            refusal = await scene.refused("probe.start", models=[name])
            expect(refusal, "invalid_request", model_id=name, catalog_id=entry_of(name))


@check("catalog_filters", "install_state")
async def filters_of_the_catalog_intersect(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        assert await listed(scene) == [EMBED, OTHER, RERANK, SHY]
        assert await listed(scene, query="  RERANKER ") == [RERANK, SHY]
        assert await listed(scene, query="seeded tiny-o") == [OTHER]
        assert await listed(scene, task="embed") == [EMBED, OTHER]
        assert await listed(scene, runnable_here=False) == [SHY]
        assert await listed(scene, installed=True) == [OTHER]
        assert await listed(scene, installed=False, task="embed", query="tiny") == [EMBED]


@check("catalog_bytes")
async def a_download_is_what_runnable_backends_need(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        rows = {row["id"]: row for row in (await scene.call("models.catalog"))["models"]}
        entry = scene.host.catalog.catalog.entry(OTHER)
        assert entry is not None
        assert rows[OTHER]["download_bytes"] == sum(file.size_bytes for file in entry.files) > 0
        assert rows[SHY]["download_bytes"] == 0


@check("platform_reason", "switched_on")
async def a_row_says_why_its_backend_does_not_run(stage: Stage) -> None:
    async with stage.scene(EMBED, switched_on=["cuda"]) as scene:
        rows = (await scene.row(EMBED))["backends"]
        assert [(row["backend"], row["runnable"], row["reason"]) for row in rows[:2]] == [
            ("metal", False, "not_supported_on_platform"),
            ("reference", True, None),
        ]
        # Its plugin is not installed, or it is and finds no device.
        assert (rows[2]["backend"], rows[2]["runnable"]) == ("cuda", False)
        assert rows[2]["reason"] in ("worker_missing", "device_missing")
        assert [row["self_check"] is None for row in rows] == [False, False, False]


@check("install_state", "installed")
async def an_install_of_another_manifest_is_stale(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        installs = scene.host.downloads.installs
        (install,) = installs.withdraw(OTHER)
        installs.put(_of_manifest(install, "0" * 64))
        row = await scene.row(OTHER)
        assert (row["install_state"], row["backends"][0]["installed"]) == ("stale", False)
        assert (await scene.not_embedded(OTHER_LANE)).code == "model_not_installed"


def _of_manifest(install: Any, digest: str) -> Any:
    return replace(install, manifest_digest=digest)


@check("list_installed", "installed")
async def what_is_installed_and_runs_has_a_row(stage: Stage) -> None:
    async with stage.scene(EMBED, RERANK) as scene:
        rows = {row["model_id"]: row for row in (await scene.call("models.list"))["models"]}
        assert sorted(rows) == [LANE, f"{RERANK}-cpu", f"{RERANK}-reference"]
        row = rows[LANE]
        assert (row["state"], row["max_tokens_source"], row["fingerprints"]) == (
            "unloaded",
            "catalog_unloaded",
            [scene.pin(LANE)],
        )
        assert not {"dims", "bucket_ladder", "warm_load_cost_hint_ms", "serving_admission_reason"} & set(row)


@check("list_admission", "list_installed", "self_check", "no_probe")
async def a_row_says_what_its_check_found(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        assert await admission(scene) == ("pending", False, "enabled", None)
        await scene.embed(OTHER_LANE)
        assert await admission(scene) == ("passed", True, "enabled", None)
        await scene.call("model.unload", model_id=OTHER_LANE)
        assert await admission(scene) == ("passed", True, "enabled", None)


async def admission(scene: Scene) -> tuple[Any, ...]:
    rows = (await scene.call("models.list"))["models"]
    row = next(row for row in rows if row["model_id"] == OTHER_LANE)
    return (row["self_check"]["state"], row["certified"], row["serving_admission"], row.get("serving_admission_reason"))


@check("report_lanes", "list_installed", "no_probe")
async def the_report_has_lanes_of_the_catalog_without_certification(stage: Stage) -> None:
    async with stage.scene(OTHER) as scene:
        rows = (await scene.call("probe.report"))["lanes"]
        row = next(row for row in rows if row["model_id"] == OTHER_LANE)
        assert (row["certification_required"], row["certification_status"]) == (False, "not_required")
        assert (row["self_check"]["state"], row["serving_admission"], row["state"]) == ("pending", None, "unloaded")
