"""Download jobs on a real store and a real cache: shared, cancelled, failed, repaired, removed, and after a boot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.downloads.failures import download_failed
from synapse_host.downloads.job import DownloadState
from synapse_host.downloads.seams import Holder
from synapse_host.errors import ArtifactInvalid, IdempotencyConflict, InvalidRequest, ModelInUse, StoreFailure
from synapse_host.store.tables import SelfCheckTableRow
from synapse_host.testing.download_room import RETENTION_MS, RunningRoom, manifest_of, running_room

pytestmark = pytest.mark.anyio

MODEL, TOKENIZER, CONFIG = b"model" * 20_000, b"tokenizer" * 300, b"config" * 10
FILES = {"model": MODEL, "tokenizer": TOKENIZER}
CONTENTS = [MODEL, TOKENIZER, CONFIG]
MANIFEST = manifest_of(FILES)
SHAS = sorted(file.sha256 for file in MANIFEST.files)
WEIGHTS = MANIFEST.files[0].sha256


def states(status: dict[str, Any]) -> tuple[str, list[str]]:
    return status["state"], sorted(status)


async def test_a_download_goes_from_queued_to_an_install(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        first = await running.room.jobs.submit(MANIFEST, None)
        assert states(first) == ("queued", ["job_id", "state"])
        running.source.hold = anyio.Event()
        await running.source.waiting.wait()
        status = await running.room.jobs.status(first["job_id"])
        assert status == {
            "job_id": first["job_id"],
            "state": "downloading",
            "bytes_done": len(MODEL) // 2,
            "bytes_total": len(MODEL) + len(TOKENIZER),
        }
        assert running.room.jobs.open_job("tiny", MANIFEST.manifest_digest) == first["job_id"]
        running.source.hold.set()
        assert states(await running.ended(first["job_id"])) == ("committed", ["job_id", "state"])

        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert {role: member.sha256 for role, member in install.members.items()} == {
            file.role: file.sha256 for file in MANIFEST.files
        }
        assert running.digests() == SHAS
        assert running.pins() == [("install", "tiny")]
        assert running.room.jobs.open_job("tiny", MANIFEST.manifest_digest) is None
        assert (running.counts.minted, running.counts.completed, running.counts.open) == (1, 1, 0)


async def test_callers_share_one_job_and_cancelling_ends_it_for_all(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        running.source.hold = anyio.Event()
        jobs = [await running.room.jobs.submit(MANIFEST, key) for key in (None, "a", "b", "  ", " a ")]
        assert len({job["job_id"] for job in jobs}) == 1
        await running.source.waiting.wait()
        job_id = jobs[0]["job_id"]
        assert states(await running.room.jobs.cancel(job_id)) == ("cancelled", ["job_id", "state"])
        assert states(await running.room.jobs.cancel(job_id)) == ("cancelled", ["job_id", "state"])
        assert running.digests() == []
        assert not list(running.room.cache.layout.incoming.iterdir())
        running.source.hold = None
        again = await running.download(MANIFEST, "a")
        assert again["state"] == "committed"
        assert again["job_id"] != job_id
        assert (running.counts.minted, running.counts.completed, running.counts.failed) == (2, 1, 1)


async def test_a_committed_job_is_recalled_while_complete_and_never_cancelled(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        job_id = (await running.download(MANIFEST))["job_id"]
        assert (await running.room.jobs.submit(MANIFEST, None)) == {"job_id": job_id, "state": "committed"}
        assert (await running.room.jobs.cancel(job_id)) == {"job_id": job_id, "state": "committed"}
        assert running.digests() == SHAS


async def test_with_nothing_to_fetch_a_job_goes_from_queued_to_committed(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        seen: list[DownloadState] = []
        job = await running.room.jobs.submit(MANIFEST, "another key")
        active = running.room.jobs._active[job["job_id"]]
        while not active.over.is_set():
            seen.append(active.job.state)
            await anyio.lowlevel.checkpoint()
        assert set(seen) <= {DownloadState.QUEUED, DownloadState.COMMITTED}
        assert await running.ended(job["job_id"]) == {"job_id": job["job_id"], "state": "committed"}
        assert running.source.fetched == ["model.bin", "tokenizer.bin"]
        assert running.pins() == [("install", "tiny")]


async def test_a_key_is_bound_to_its_content(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        job = await running.room.jobs.submit(MANIFEST, "k")
        with pytest.raises(IdempotencyConflict) as refused:
            await running.room.jobs.submit(manifest_of(FILES, version=2), "k")
        assert refused.value.details == {"request_key": "k", "job_id": job["job_id"]}
        await running.ended(job["job_id"])


async def test_a_failure_is_flat_and_leaves_nothing(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        running.source.fail["tokenizer.bin"] = download_failed("tokenizer.bin", "network", "cut")
        status = await running.download(MANIFEST)
        assert states(status) == ("failed", ["error", "job_id", "state"])
        assert status["error"]["details"] == {"file": "tokenizer.bin", "reason": "network", "http_status": None}
        assert running.digests() == []
        assert running.room.installs.all() == []
        running.source.fail.clear()
        assert (await running.download(MANIFEST))["state"] == "committed"
        assert await running.room.jobs.status(status["job_id"]) == status


async def test_content_somebody_else_needs_outlives_a_failure(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        other = manifest_of({"model": MODEL}, catalog_id="other")
        await running.download(other)
        running.source.fail["tokenizer.bin"] = download_failed("tokenizer.bin", "network", "cut")
        assert (await running.download(MANIFEST))["state"] == "failed"
        assert running.digests() == [WEIGHTS]
        assert running.pins() == [("install", "other")]


async def test_content_that_lay_there_unpinned_is_reused_and_stays_after_a_failure(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        cache = running.room.cache
        with cache.ingest() as ingest:
            ingest.write(MODEL)
            ingest.commit(name="m", source_url="u", owner="x")
        cache.unpin(WEIGHTS, "x")
        running.source.fail["tokenizer.bin"] = download_failed("tokenizer.bin", "network", "cut")
        assert (await running.download(MANIFEST))["state"] == "failed"
        assert running.source.fetched == []
        assert running.digests() == [WEIGHTS]
        assert running.pins() == []


@pytest.mark.parametrize("damage", ["zeros", "truncated", "swapped", "gone"])
async def test_damaged_content_is_found_and_a_download_repairs_that_file_alone(tmp_path: Path, damage: str) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        first = await running.download(MANIFEST)
        spoil(running, damage)
        with pytest.raises(ArtifactInvalid) as refused:
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        details = refused.value.details or {}
        assert details["recovery_op"] == "models.download"
        assert (details["expected_sha256"], details["expected_size"]) == (WEIGHTS, len(MODEL))
        assert (details["actual_sha256"] is None) == (damage == "gone")
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert not install.valid
        kept = [path.name for path in running.room.cache.layout.quarantine.iterdir()]
        assert kept == ([] if damage == "gone" else [f"{WEIGHTS}.1"])

        running.source.fetched.clear()
        again = await running.download(MANIFEST)
        assert again["state"] == "committed"
        assert again["job_id"] != first["job_id"]
        assert running.source.fetched == ["model.bin"]
        assert running.room.cache.path(WEIGHTS).read_bytes() == MODEL
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert install.valid
        await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))


def spoil(running: RunningRoom, damage: str) -> None:
    path = running.room.cache.path(WEIGHTS)
    if damage == "gone":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(MODEL[:-1])
    elif damage == "zeros":
        path.write_bytes(b"\0" * len(MODEL))
    else:
        other = path.with_name("other")
        other.write_bytes(b"x" * len(MODEL))
        other.replace(path)


async def test_damage_found_only_by_hashing_is_repaired_by_the_download_that_meets_it(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        spoil(running, "zeros")
        running.source.fetched.clear()
        other = manifest_of({"model": MODEL}, catalog_id="other")
        assert (await running.download(other))["state"] == "committed"
        assert running.source.fetched == ["model.bin"]
        assert running.room.cache.path(WEIGHTS).read_bytes() == MODEL


async def test_content_is_hashed_once_while_its_file_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        audited: list[str] = []
        real = type(running.room.cache).audit
        monkeypatch.setattr(
            type(running.room.cache), "audit", lambda cache, digest: (audited.append(digest), real(cache, digest))[1]
        )
        for _ in range(2):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        assert audited == []
        path = running.room.cache.path(WEIGHTS)
        path.write_bytes(MODEL)
        for _ in range(2):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        assert audited == [WEIGHTS]


async def test_only_the_installs_of_damaged_content_are_hit(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        config = manifest_of({"config": CONFIG}, catalog_id="other")
        await running.download(MANIFEST)
        await running.download(config)
        spoil(running, "zeros")
        with pytest.raises(ArtifactInvalid):
            await running.room.verifier.require("model.bin", WEIGHTS, len(MODEL))
        valid = {install.catalog_id: install.valid for install in running.room.installs.all()}
        assert valid == {"tiny": False, "other": True}
    async with running_room(tmp_path, CONTENTS) as after:
        assert {each.catalog_id: each.valid for each in after.room.installs.all()} == valid


async def test_more_files_for_another_backend_join_the_install(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST, "k")
        wider = manifest_of({**FILES, "config": CONFIG})
        running.source.fetched.clear()
        assert (await running.download(wider, "k"))["state"] == "committed"
        assert running.source.fetched == ["config.bin"]
        assert (await running.download(MANIFEST, "k2"))["state"] == "committed"
        install = running.room.installs.current("tiny", MANIFEST.manifest_digest)
        assert install is not None
        assert set(install.members) == {"model", "tokenizer", "config"}


async def test_removing_takes_every_install_and_only_content_nobody_else_needs(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST, "1")
        await running.download(manifest_of(FILES, version=2), "2")
        await running.download(manifest_of({"tokenizer": TOKENIZER}, catalog_id="other"), "3")
        await running.store.run(lambda session: session.add(check_row("tiny")))
        await running.store.run(lambda session: session.add(check_row("other")))
        removed = await running.room.removal([]).remove("tiny")
        assert removed.manifests == (f"{1:064x}", f"{2:064x}")
        assert removed.freed_bytes == len(MODEL)
        assert running.digests() == [MANIFEST.files[1].sha256]
        assert [install.catalog_id for install in running.room.installs.all()] == ["other"]
        left = await running.store.run(lambda session: session.get(SelfCheckTableRow, check_row("tiny").check_id))
        kept = await running.store.run(lambda session: session.get(SelfCheckTableRow, check_row("other").check_id))
        assert (left is None, kept is None) == (True, False)
        assert await running.room.removal([]).remove("tiny") == type(removed)((), 0)


def check_row(catalog_id: str) -> SelfCheckTableRow:
    return SelfCheckTableRow(
        check_id=catalog_id.encode().hex().ljust(64, "0"),
        catalog_id=catalog_id,
        backend="metal",
        state="passed",
        reason=None,
        key_json="{}",
        figures_json="{}",
        checked_at_ms=1,
    )


class Held:
    def holders(self, catalog_id: str) -> list[Holder]:
        return [Holder("loaded", f"{catalog_id}-metal"), Holder("self_check", "c"), Holder("request", "r")]


async def test_a_held_entry_is_not_removed_and_every_holder_is_named(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        running.source.hold = anyio.Event()
        job = await running.room.jobs.submit(MANIFEST, None)
        with pytest.raises(ModelInUse) as refused:
            await running.room.removal([Held()]).remove("tiny")
        assert refused.value.details == {
            "catalog_id": "tiny",
            "holders": [
                {"kind": "loaded", "model_id": "tiny-metal"},
                {"kind": "self_check", "check_id": "c"},
                {"kind": "request", "lease_id": "r"},
                {"kind": "job", "job_id": job["job_id"]},
            ],
        }
        running.source.hold.set()
        await running.ended(job["job_id"])
        await running.room.removal([]).remove("tiny")


async def test_a_removal_the_store_refuses_leaves_the_install_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)

        async def refuse(store: object, catalog_id: str) -> list[str]:
            raise StoreFailure("full")

        monkeypatch.setattr("synapse_host.store.download_store.DownloadStore.remove_installs", refuse)
        with pytest.raises(StoreFailure):
            await running.room.removal([]).remove("tiny")
        assert running.room.installs.current("tiny", MANIFEST.manifest_digest) is not None
        assert running.digests() == SHAS


async def test_content_a_reader_holds_outlives_its_removal_until_a_collection(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        with running.room.cache.lease(WEIGHTS):
            removed = await running.room.removal([]).remove("tiny")
            assert removed.freed_bytes == len(TOKENIZER)
            assert running.digests() == [WEIGHTS]
        for now_ms in (1, 2, 3):
            running.room.cache.collect(now_ms=now_ms, grace_ms=0)
        assert running.digests() == []


async def test_job_and_key_expire_together_and_an_unknown_job_is_refused(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        job = await running.download(MANIFEST, "k")
        running.clock_ms[0] += RETENTION_MS - 1
        assert (await running.room.jobs.status(job["job_id"]))["state"] == "committed"
        running.clock_ms[0] += 1
        for job_id in (job["job_id"], "embed-1-1", "", "x" * 500):
            for ask in (running.room.jobs.status, running.room.jobs.cancel):
                with pytest.raises(InvalidRequest) as refused:
                    await ask(job_id)
                assert refused.value.details == {"job_id": job_id[:256]}
                assert not refused.value.channel
        other = await running.download(manifest_of(FILES, version=2), "k")
        assert other["state"] == "committed"


async def test_a_boot_fails_open_jobs_and_keeps_committed_installs(tmp_path: Path) -> None:
    other = manifest_of({"config": CONFIG}, catalog_id="other")
    async with running_room(tmp_path, CONTENTS) as before:
        await before.download(other)
        before.source.hold = anyio.Event()
        job = await before.room.jobs.submit(MANIFEST, None)
        await before.source.waiting.wait()
    async with running_room(tmp_path, CONTENTS) as after:
        status = await after.room.jobs.status(job["job_id"])
        assert status["state"] == "failed"
        assert (status["error"]["code"], status["error"]["class"]) == ("module_restarted", "permanent")
        assert "details" not in status["error"]
        assert (after.counts.inherited, after.counts.failed, after.counts.open) == (1, 1, 0)
        assert [install.catalog_id for install in after.room.installs.all()] == ["other"]
        assert after.digests() == [other.files[0].sha256]
        assert not list(after.room.cache.layout.incoming.iterdir())
        assert (await after.download(MANIFEST))["state"] == "committed"


async def test_a_boot_makes_the_pins_what_the_store_says(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as before:
        await before.download(MANIFEST)
        cache = before.room.cache
        host = cache.owner
        for owner in (f"{host}/operator", f"{host}/install/gone/{'0' * 64}", f"{host}/model/kept", "host-other/x"):
            cache.pin(WEIGHTS, owner)
        cache.unpin(MANIFEST.files[1].sha256, f"{host}/install/tiny/{MANIFEST.manifest_digest}")
    async with running_room(tmp_path, CONTENTS) as after:
        assert after.pins() == [("install", "tiny"), ("model", "kept"), ("operator",), ("x",)]
        owners = [owner for digest, owner in after.room.cache.pins() if digest == MANIFEST.files[1].sha256]
        assert owners == [f"{host}/install/tiny/{MANIFEST.manifest_digest}"]


async def test_a_fault_inside_the_host_ends_the_job_and_not_the_host(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        running.source.fail["model.bin"] = RuntimeError("a slip")
        status = await running.download(MANIFEST)
        assert (status["state"], status["error"]["code"]) == ("failed", "engine_crashed")
        running.source.fail.clear()
        assert (await running.download(MANIFEST))["state"] == "committed"


async def test_an_end_the_store_could_not_keep_is_told_and_kept_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:

        async def refuse(*_: object, **__: object) -> bool:
            raise StoreFailure("the disk is full")

        running.source.fail["model.bin"] = download_failed("model.bin", "network", "cut")
        with monkeypatch.context() as patch:
            patch.setattr("synapse_host.store.download_store.DownloadStore.end", refuse)
            status = await running.download(MANIFEST)
            assert status["error"]["code"] == "download_failed"
        running.source.fail.clear()
        again = await running.download(MANIFEST)
        assert again["state"] == "committed"
        assert await running.room.jobs.status(status["job_id"]) == status


async def test_a_commit_the_store_refuses_fails_the_job_and_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_room(tmp_path, CONTENTS) as running:

        async def refuse(*_: object) -> bool:
            raise StoreFailure("the disk is full")

        monkeypatch.setattr("synapse_host.store.download_store.DownloadStore.commit", refuse)
        status = await running.download(MANIFEST)
        assert (status["state"], status["error"]["code"]) == ("failed", "store_failure")
        assert running.digests() == []
        assert running.room.installs.all() == []


@pytest.mark.parametrize("attempt", range(12))
async def test_a_cancellation_at_any_moment_has_one_outcome(tmp_path: Path, attempt: int) -> None:
    async with running_room(tmp_path, CONTENTS) as running:
        job = await running.room.jobs.submit(MANIFEST, None)
        for _ in range(attempt * 4):
            await anyio.lowlevel.checkpoint()
        status = await running.room.jobs.cancel(job["job_id"])
        row = await running.store.run(
            lambda session: session.connection().exec_driver_sql("SELECT state FROM downloads").scalar_one()
        )
        assert row == status["state"]
        assert bool(running.room.installs.all()) == (status["state"] == "committed")
        assert running.digests() == (SHAS if status["state"] == "committed" else [])
        assert running.counts.open == 0


async def test_every_job_logs_one_closing_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        running.source.fail["model.bin"] = download_failed("model.bin", "http_status", "HTTP 404", http_status=404)
        await running.room.removal([]).remove("tiny")
        await running.download(MANIFEST)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("download models-")]
    assert len(lines) == 2
    assert "committed after" in lines[0]
    assert "failed after" in lines[1]
    assert "download_failed: HTTP 404" in lines[1]


async def test_a_cache_over_its_limit_gives_up_what_nobody_pins(tmp_path: Path) -> None:
    async with running_room(tmp_path, CONTENTS, max_bytes=len(TOKENIZER) + 10) as running:
        config = manifest_of({"config": CONFIG}, catalog_id="other")
        await running.download(MANIFEST, "1")
        with running.room.cache.lease(WEIGHTS):
            await running.room.removal([]).remove("tiny")
        for number in range(2):
            await running.download(manifest_of({"tokenizer": TOKENIZER}, version=number + 3), f"t{number}")
            running.clock_ms[0] += 60_000
        with anyio.fail_after(20):
            while WEIGHTS in running.digests():
                await anyio.lowlevel.checkpoint()
        assert (await running.download(config, "c"))["state"] == "committed"


async def test_a_cache_that_cannot_be_used_stops_no_boot_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with running_room(tmp_path / "home", CONTENTS, cache_root=tmp_path / "file" / "models") as running:
        with pytest.raises(StoreFailure, match="model cache"):
            await running.room.require_cache()
        (tmp_path / "file").unlink()
        await running.room.require_cache()
        assert (await running.download(MANIFEST))["state"] == "committed"


async def test_two_hosts_share_a_cache_and_each_keeps_what_it_needs(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    async with (
        running_room(tmp_path / "a", CONTENTS, cache_root=shared) as first,
        running_room(tmp_path / "b", CONTENTS, cache_root=shared) as second,
    ):
        await first.download(MANIFEST)
        await second.download(MANIFEST)
        assert second.source.fetched == []
        assert (await first.room.removal([]).remove("tiny")).freed_bytes == 0
        assert second.digests() == SHAS
        kept = first.room.cache.collect(now_ms=1, grace_ms=0)
        assert {str(outcome.verdict) for outcome in kept} == {"Keep(reason='pinned_by_foreign_module')"}
        assert (await second.room.removal([]).remove("tiny")).freed_bytes == len(MODEL) + len(TOKENIZER)
        assert first.digests() == []
