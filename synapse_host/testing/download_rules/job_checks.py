"""Checks of jobs: keys, sharing, one end, what a restart and time make of them, removal, damage, collection."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import anyio

from synapse_host.cache.collection import Outcome
from synapse_host.cache.collection_rule import Keep, Mark
from synapse_host.cache.known_hosts import forget_host
from synapse_host.downloads.failures import download_failed
from synapse_host.downloads.job import DownloadState
from synapse_host.downloads.seams import Holder
from synapse_host.errors import InvalidRequest
from synapse_host.store.download_tables import DownloadKeyRow
from synapse_host.testing.download_room import RETENTION_MS, RunningRoom, manifest_of, running_room
from synapse_host.testing.download_rules.registered import check, refusal

MODEL, TOKENIZER = b"model" * 5000, b"tokenizer" * 100
FILES = {"model": MODEL, "tokenizer": TOKENIZER}
MANIFEST, OTHER_MANIFEST = manifest_of(FILES), manifest_of(FILES, version=2)
WEIGHTS = hashlib.sha256(MODEL).hexdigest()
CONTENTS = [MODEL, TOKENIZER]
CUT = download_failed("tokenizer.bin", "network", "cut")


async def held(running: RunningRoom, key: str | None = None) -> str:
    """A download that waits in the middle of its first file."""
    running.source.hold, running.source.waiting = anyio.Event(), anyio.Event()
    job = await running.room.jobs.submit(MANIFEST, key)
    with anyio.fail_after(20):
        await running.source.waiting.wait()
    return str(job["job_id"])


@check("key_bound")
async def a_key_of_another_manifest(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        job = await running.download(MANIFEST, "k")
        refused = await refusal(running.room.jobs.submit(OTHER_MANIFEST, "k"))
        assert (refused.code, refused.error_class, refused.safe_to_retry) == (
            "idempotency_conflict",
            "permanent",
            False,
        )
        assert refused.details == {"request_key": "k", "job_id": job["job_id"]}


@check("blank_key")
async def a_blank_key_is_none(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        job = await running.download(MANIFEST, " ")
        named = f"models.download:tiny:{MANIFEST.manifest_digest}"
        bound = await running.store.run(lambda session: session.get(DownloadKeyRow, named))
        assert bound is not None
        assert bound.job_id == job["job_id"]


@check("one_job")
async def everybody_shares_the_job_of_a_manifest(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        job_id = await held(running, "a")
        assert (await running.room.jobs.submit(MANIFEST, "b"))["job_id"] == job_id
        assert running.source.hold is not None
        running.source.hold.set()
        await running.ended(job_id)


@check("recalled")
async def a_key_recalls_its_committed_job(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        first = await running.download(MANIFEST, "k")
        assert (await running.room.jobs.submit(MANIFEST, "k")) == first


@check("recalled_while_complete")
async def a_job_is_not_recalled_once_a_file_is_gone(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        first = await running.download(MANIFEST, "k")
        running.room.cache.path(WEIGHTS).unlink()
        again = await running.download(MANIFEST, "k")
        assert again["job_id"] != first["job_id"]
        assert running.room.cache.path(WEIGHTS).is_file()


@check("content_reused")
async def content_that_is_here_is_not_fetched(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(manifest_of({"tokenizer": TOKENIZER}, catalog_id="other"))
        running.source.fetched.clear()
        await running.download(MANIFEST)
        assert running.source.fetched == ["model.bin"]


@check("reused_hashed")
async def content_that_is_here_is_hashed_before_it_is_installed(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        running.room.cache.path(WEIGHTS).write_bytes(b"\0" * len(MODEL))
        running.source.fetched.clear()
        await running.download(manifest_of({"model": MODEL}, catalog_id="other"))
        assert running.room.cache.path(WEIGHTS).read_bytes() == MODEL


@check("one_end")
async def a_cancellation_is_not_undone_by_a_commit(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        job_id = await held(running)
        active = running.room.jobs._active[job_id]
        assert running.source.hold is not None
        assert active.job.claim(DownloadState.CANCELLED)
        running.source.hold.set()
        status = await running.ended(job_id)
        assert status["state"] == "cancelled"
        assert running.room.installs.all() == []


@check("commit_stays")
async def a_committed_job_is_not_cancelled(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        job = await running.download(MANIFEST)
        assert await running.room.jobs.cancel(job["job_id"]) == job
        assert len(running.digests()) == 2


@check("failure_cleans_up")
async def a_failed_job_leaves_nothing_it_brought(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        running.source.fail["tokenizer.bin"] = CUT
        status = await running.download(MANIFEST)
        assert (status["state"], status["error"]["details"]) == ("failed", CUT.details)
        assert running.digests() == []


@check("cleaning_spares")
async def a_failed_job_leaves_what_others_need(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(manifest_of({"model": MODEL}, catalog_id="other"))
        running.source.fail["tokenizer.bin"] = CUT
        await running.download(MANIFEST)
        assert running.digests() == [WEIGHTS]


@check("unknown_job")
async def a_job_nobody_knows(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        refused = await refusal(running.room.jobs.status("embed-1-1"))
        assert isinstance(refused, InvalidRequest)
        assert refused.details == {"job_id": "embed-1-1"}


@check("expires")
async def job_and_key_expire_together(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST, "k")
        running.clock_ms[0] += RETENTION_MS
        assert (await running.download(OTHER_MANIFEST, "k"))["state"] == "committed"


@check("restart_fails_open_jobs")
async def a_job_that_was_open_is_told_as_restarted(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as before:
        job_id = await held(before)
    async with running_room(folder, CONTENTS) as after:
        status = await after.room.jobs.status(job_id)
        assert (status["state"], status.get("error", {}).get("code")) == ("failed", "module_restarted")


@check("restart_cleans_up")
async def content_of_a_broken_job_goes_at_the_restart(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as before:
        cache = before.room.cache
        with cache.ingest() as ingest:
            ingest.write(MODEL)
            ingest.commit(name="m", source_url="u", owner=f"{cache.owner}/download/gone")
    async with running_room(folder, CONTENTS) as after:
        assert after.digests() == []


class _Held:
    def holders(self, catalog_id: str) -> list[Holder]:
        return [Holder("request", "lease-1")]


@check("held_stays")
async def a_held_entry(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        refused = await refusal(running.room.removal([_Held()]).remove("tiny"))
        assert (refused.code, refused.details) == (
            "model_in_use",
            {"catalog_id": "tiny", "holders": [{"kind": "request", "lease_id": "lease-1"}]},
        )


@check("removal_frees", "cleaning_spares")
async def removing_frees_what_nobody_else_needs(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        await running.download(manifest_of({"tokenizer": TOKENIZER}, catalog_id="other"), "o")
        removed = await running.room.removal([]).remove("tiny")
        assert (removed.manifests, removed.freed_bytes) == ((MANIFEST.manifest_digest,), len(MODEL))


@check("damage_set_aside")
async def damaged_content_is_set_aside(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        running.room.cache.path(WEIGHTS).write_bytes(b"x")
        await refusal(running.room.verifier.require("model.bin", WEIGHTS, len(MODEL)))
        assert [path.name for path in running.room.cache.layout.quarantine.iterdir()] == [f"{WEIGHTS}.1"]


@check("damage_invalidates")
async def what_holds_damaged_content_is_invalid_and_nothing_else(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        await running.download(manifest_of({"tokenizer": TOKENIZER}, catalog_id="other"), "o")
        running.room.cache.path(WEIGHTS).write_bytes(b"x")
        await refusal(running.room.verifier.require("model.bin", WEIGHTS, len(MODEL)))
        valid = {install.catalog_id: install.valid for install in running.room.installs.all()}
        assert valid == {"tiny": False, "other": True}


@check("gc_marks_first", "gc_spares_readers", "gc_spares_pins")
async def collection_takes_two_steps_and_spares_readers_and_pins(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        cache = running.room.cache
        with cache.ingest() as ingest:
            ingest.write(MODEL)
            ingest.commit(name="m", source_url="u", owner="host-of-another")
        assert cache.collect(now_ms=0, grace_ms=10) == [Outcome(WEIGHTS, Keep("pinned_by_foreign_module"))]
        cache.unpin(WEIGHTS, "host-of-another")
        with cache.lease(WEIGHTS):
            assert cache.collect(now_ms=0, grace_ms=10) == [Outcome(WEIGHTS, Keep("shared_reader_or_gc_active"))]
        assert cache.collect(now_ms=0, grace_ms=10) == [Outcome(WEIGHTS, Mark(0, 10))]
        assert cache.collect(now_ms=10, grace_ms=10)[0].freed_bytes == len(MODEL)


@check("copy_is_another", "cleaning_spares")
async def a_copied_home_takes_nothing_of_its_original(folder: Path) -> None:
    shared = folder / "shared"
    async with running_room(folder / "one", CONTENTS, cache_root=shared) as first:
        await first.download(MANIFEST)
    shutil.copytree(folder / "one", folder / "two")
    async with running_room(folder / "two", CONTENTS, cache_root=shared) as copy:
        removed = await copy.room.removal([]).remove("tiny")
        assert (removed.freed_bytes, copy.digests()) == (0, sorted(file.sha256 for file in MANIFEST.files))


@check("living_kept")
async def a_running_host_is_not_forgotten(folder: Path) -> None:
    async with running_room(folder, CONTENTS) as running:
        await running.download(MANIFEST)
        assert forget_host(running.room.cache.layout, running.room.cache.owner) is None
        assert ("install", "tiny") in running.pins()
