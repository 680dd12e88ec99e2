"""Download jobs on a real store and a real cache: shared, cancelled, failed, recalled, and after a boot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.cache.blob_cache import BlobCache
from synapse_host.downloads.failures import download_failed
from synapse_host.downloads.job import DownloadState
from synapse_host.errors import IdempotencyConflict, InvalidRequest, StoreFailure
from synapse_host.testing.download_room import RETENTION_MS, manifest_of, running_room

pytestmark = pytest.mark.anyio

MODEL, TOKENIZER, CONFIG = b"model" * 20_000, b"tokenizer" * 300, b"config" * 10
FILES = {"model": MODEL, "tokenizer": TOKENIZER}
CONTENTS = [MODEL, TOKENIZER, CONFIG]
MANIFEST = manifest_of(FILES)
SHAS = sorted(file.sha256 for file in MANIFEST.files)
WEIGHTS = MANIFEST.files[0].sha256


def states(status: dict[str, Any]) -> tuple[str, list[str]]:
    return status["state"], sorted(status)


@pytest.mark.parametrize("fault", [None, StoreFailure("unreadable; mend it")])
async def test_trimming_meets_what_others_do_to_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    """Content that another host gives up first, and a cache that cannot be read."""
    trimmed = anyio.Event()

    def over(cache: BlobCache, limit_bytes: int) -> list[str]:
        anyio.from_thread.run_sync(trimmed.set)
        if fault is not None:
            raise fault
        return ["f" * 64]

    monkeypatch.setattr(BlobCache, "over_watermark", over)
    async with running_room(tmp_path, CONTENTS) as running:
        await running.download(MANIFEST)
        await trimmed.wait()
        assert (await running.download(manifest_of({"config": CONFIG}, catalog_id="other")))["state"] == "committed"


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
        assert {name: member.sha256 for name, member in install.members.items()} == {
            file.name: file.sha256 for file in MANIFEST.files
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
