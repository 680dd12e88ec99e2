"""A store on a full disk: what cannot be written down is kept in mind, told, and written when there is room again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from synapse_host.certification.alias_table import AliasTable
from synapse_host.cli.job_rendering import show_cancelled
from synapse_host.errors import InvalidRequest, StoreFailure
from synapse_host.jobs.job_reader import job_status
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.operations.durable_jobs import JobCancelParams, JobService
from synapse_host.operations.registry import RequestContext
from synapse_host.store.cancel_notes import CANCEL_NOTES, CancelNotes
from synapse_host.testing.job_bench import JobBench, job_bench, numbered, submission_of
from synapse_host.testing.no_op_lane import NoOpLane
from synapse_host.testing.small_disk import fill, free, free_bytes, is_sound, mounted, only_root

pytestmark = [pytest.mark.anyio, only_root]
#: Two of them pass the disk of these tests.
LONG_TEXT = "a" * 700_000


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path):
        yield tmp_path / "synapse.sqlite3"


async def filled(bench: JobBench, path: Path) -> None:
    """Let the journal have no room of its own either."""
    with pytest.raises(StoreFailure, match="free disk space"):
        await bench.submit(submission_of("large", ["1", "2"], [LONG_TEXT, LONG_TEXT]))
    fill(path.parent)


# --- what is wanted no more ------------------------------------------------------------------------------------------


async def test_a_job_cancelled_on_a_full_disk_ends_as_cancelled_when_there_is_room(
    path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane, limits=PageLimits(bytes=100, seconds=3600)) as bench:
        service = JobService(
            bench.ledger,
            bench.dispatcher.enqueue,
            bench.dispatcher.cancel,
            bench.dispatcher.held_up_by,
            AliasTable(),
            1 << 20,
            1 << 24,
        )
        lane.hold = anyio.Event()
        running = (await bench.submit(numbered("running", 24))).job
        queued = (await bench.submit(numbered("queued", 8))).job
        with anyio.fail_after(30):
            await lane.entered.wait()
        await filled(bench, path)
        caplog.clear()
        for job in (queued, running):
            with anyio.fail_after(30):
                answer = (await service.cancel(JobCancelParams(job_id=job.job_id), RequestContext(0.0))).payload
            assert answer["state"] in ("queued", "running")
            waits = answer["waiting_for"]
            assert waits["code"] == "store_failure"
            assert waits["details"] == {"ends_as": "cancelled", "outlives_the_host": True}
            assert "free disk space" in waits["message"]
            show_cancelled("k", [answer])
            assert "cancelled, waits for: store_failure" in capfd.readouterr().out
        with pytest.raises(InvalidRequest, match="no job 'never'"):
            await bench.dispatcher.cancel("never")
        lane.hold.set()
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert any(f"job {running.job_id} " in line for line in told), told
        with pytest.raises(StoreFailure):
            await bench.dispatcher.settle()
        free(path.parent)
        await bench.dispatcher.settle()
        for job in (running, queued):
            ended = await bench.ended(job.job_id)
            assert (ended.state, ended.error_json) == ("cancelled", None)
            assert "waiting_for" not in job_status(ended, bench.dispatcher.held_up_by(ended))
        assert bench.ledger.counters.open == 0
        assert await CancelNotes(path.with_name(CANCEL_NOTES)).read() == frozenset()
        assert [group for group in lane.computed if group[0].startswith("queued")] == []
        # Its lane goes on.
        after = (await bench.submit(numbered("after", 8))).job
        assert (await bench.ended(after.job_id)).state == "done"
    assert is_sound(path)


async def test_a_job_cancelled_on_a_full_disk_is_so_for_the_next_host_too(path: Path) -> None:
    lane, jobs = NoOpLane(), dict[str, str]()
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        for name in ("running", "queued", "wanted"):
            jobs[name] = (await bench.submit(numbered(name, 24))).job.job_id
        with anyio.fail_after(30):
            await lane.entered.wait()
        await filled(bench, path)
        for name in ("running", "queued"):
            await bench.dispatcher.cancel(jobs[name])
    free(path.parent)
    async with job_bench(path, generation=2) as bench:
        states = {name: (await bench.ledger.job(job_id)).state for name, job_id in jobs.items()}
        assert states == {"running": "cancelled", "queued": "cancelled", "wanted": "failed_transient"}
        counted = bench.ledger.counters.to_wire()
        assert (counted["jobs_failed"], counted["jobs_inherited"], counted["jobs_open"]) == (3, 3, 0)
        assert await CancelNotes(path.with_name(CANCEL_NOTES)).read() == frozenset()


async def test_a_cancel_that_cannot_be_noted_says_that_it_may_be_forgotten(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane) as bench:
        path.with_name(CANCEL_NOTES).unlink()
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24))).job
        with anyio.fail_after(30):
            await lane.entered.wait()
        await filled(bench, path)
        told = bench.dispatcher.held_up_by(await bench.dispatcher.cancel(job.job_id))
        assert isinstance(told, StoreFailure)
        assert told.details == {"ends_as": "cancelled", "outlives_the_host": False}
        assert "which a host that ends before forgets" in told.message


async def test_a_job_whose_rows_find_no_room_fails_for_now_and_its_key_goes_on(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane, limits=PageLimits(bytes=1, seconds=0)) as bench:
        job = (await bench.submit(numbered("k", 8))).job
        await bench.ended(job.job_id)
        lane.hold = anyio.Event()
        second = (await bench.submit(numbered("second", 8))).job
        lane.entered = anyio.Event()
        with anyio.fail_after(30):
            await lane.entered.wait()
        await filled(bench, path)
        lane.hold.set()
        with anyio.fail_after(30):
            while bench.dispatcher.held_up_by(second) is None:
                await anyio.lowlevel.checkpoint()
        free(path.parent)
        await bench.dispatcher.settle()
        # Its rows could not be written down, so it has not all of them: the same key goes on.
        ended = await bench.ended(second.job_id)
        assert ended.state == "failed_transient"
        again = (await bench.submit(numbered("second", 8))).job
        assert (await bench.ended(again.job_id)).state == "done"


# --- the room it takes -----------------------------------------------------------------------------------------------


async def test_a_submission_that_is_refused_leaves_the_room_it_was_refused_for(path: Path) -> None:
    async with job_bench(path) as bench:
        done = (await bench.submit(numbered("k", 8))).job
        await bench.ended(done.job_id)
        room = free_bytes(path.parent)
        for _ in range(2):
            with pytest.raises(StoreFailure, match="free disk space"):
                await bench.submit(submission_of("large", ["1", "2"], [LONG_TEXT, LONG_TEXT]))
            assert free_bytes(path.parent) >= room - 65536
        assert (await bench.ended((await bench.submit(numbered("l", 8))).job.job_id)).state == "done"
        assert len(await bench.vectors(done.job_id)) == 8
    assert is_sound(path)


async def test_a_journal_that_grew_is_cut_when_it_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "on-a-disk.sqlite3"
    async with job_bench(path) as bench:
        texts = [str(at) * 2**20 for at in range(12)]
        job = (await bench.submit(submission_of("large", [str(at) for at in range(12)], texts))).job
        await bench.ended(job.job_id)
        for number in range(3):
            await bench.ended((await bench.submit(numbered(f"k{number}", 8))).job.job_id)
        assert path.with_name(f"{path.name}-wal").stat().st_size <= 6 << 20


# --- what is told of it ----------------------------------------------------------------------------------------------


async def test_a_store_says_that_it_cannot_be_written_until_it_can(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with job_bench(path) as bench:
        assert bench.store.fault is None
        await filled(bench, path)
        assert bench.store.fault is not None
        assert "free disk space" in bench.store.fault.message
        # Neither reading nor a transaction that writes nothing says anything of that.
        with pytest.raises(InvalidRequest):
            await bench.ledger.cancel("never")
        assert await bench.ledger.open_by_state() == {}
        assert bench.store.fault is not None
        with pytest.raises(StoreFailure):
            await bench.dispatcher.settle()
        free(path.parent)
        await bench.dispatcher.settle()
        assert bench.store.fault is None
        await bench.ended((await bench.submit(numbered("k", 8))).job.job_id)
    told = [record.getMessage() for record in caplog.records if record.name == "synapse_host.store.database"]
    assert len(told) == 2, told
    assert "free disk space" in told[0]
    assert "can be written again" in told[1]
