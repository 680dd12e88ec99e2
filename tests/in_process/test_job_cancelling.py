"""Jobs that are wanted no more: ended once, in any state, with what they computed kept and their key free to go on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from synapse_host.errors import IdempotencyConflict, InvalidRequest, ModelLoading
from synapse_host.jobs.job_reader import job_status
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.testing.job_bench import job_bench, numbered
from synapse_host.testing.job_book import LENGTHS, Book, key, page, submission
from synapse_host.testing.no_op_lane import NoOpLane, named_vector

pytestmark = pytest.mark.anyio
#: A page for about every second group.
SMALL_PAGES = PageLimits(bytes=4000, seconds=3600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "synapse.sqlite3"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path / "synapse.sqlite3")
    yield opened
    opened.store.close()


def expected(name: str, places: range) -> dict[str, bytes]:
    return {f"{name}-{place}": named_vector(f"{name}-{place}", 4) for place in places}


# --- in the book ----------------------------------------------------------------------------------------------------


async def test_a_job_that_is_wanted_no_more_ends_where_nobody_carries_it_out(
    book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    queued = (await book.ledger.admit(submission("queued"))).job
    paused = (await book.ledger.admit(submission("paused"))).job
    running = (await book.ledger.admit(submission("running"))).job
    await book.ledger.pause(key(paused), "handle")
    await book.ledger.claim(key(running))
    book.now += 7
    for job in (queued, paused):
        ended = await book.ledger.cancel(job.job_id)
        assert (ended.state, ended.terminal_at_ms, ended.error_json) == ("cancelled", book.now, None)
        assert (ended.paused_at_ms, ended.resume_deadline_ms) == (None, None)
        assert book.texts_kept(ended) == []
        book.now += 1
        again = await book.ledger.cancel(job.job_id)
        assert again.terminal_at_ms == ended.terminal_at_ms, "a job ends once"
    assert (await book.ledger.cancel(running.job_id)).state == "running", "its executor must put it down"
    assert await book.ledger.claim(key(queued)) is None
    assert book.ledger.counters.to_wire() == {
        "jobs_minted": 3,
        "jobs_completed": 0,
        "jobs_failed": 2,
        "jobs_inherited": 0,
        "jobs_open": 1,
    }
    closing = [record.getMessage() for record in caplog.records if "closed as" in record.getMessage()]
    assert [line.partition(" after")[0] for line in closing] == [
        f"job {job.job_id} of model 'm' closed as cancelled" for job in (queued, paused)
    ]


async def test_the_key_of_a_cancelled_job_goes_on_with_what_is_left(book: Book) -> None:
    first = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(first))
    await book.ledger.commit_page(key(first), page(1))
    await book.ledger.cancel_running(key(first))
    assert (await book.ledger.job(first.job_id)).state == "cancelled"
    again = await book.ledger.admit(submission())
    assert (again.fresh, again.job.items_done, book.texts_kept(again.job)) == (True, 1, [0, 2])
    with pytest.raises(IdempotencyConflict):
        await book.ledger.admit(submission(texts=("other",)))
    await book.ledger.cancel(again.job.job_id)
    # Kept as long as the results of any job, and then gone.
    book.now += LENGTHS.retention_ms - 1
    assert await book.ledger.sweep() == 0
    book.now += 1
    assert await book.ledger.sweep() == 2
    assert (await book.ledger.admit(submission(texts=("other",)))).fresh


async def test_open_jobs_are_found_by_their_key_and_its_parts_alone(book: Book) -> None:
    parts = ["k_y", "k_y/0001", "k_y/0002", "k_y/0003", "k_y/9998", "k_y/9999", "k_y/10000"]
    # Somebody else's, though they look like parts.
    others = ["k_y/0000", "k_y/0005", "k_y/x", "k_y/001", "k_y/00004", "k_yz", "k_y/", "alone/2024"]
    names = [*parts, *others, "k_y/0001/0001", "kxy/0001"]
    jobs = {name: (await book.ledger.admit(submission(name))).job for name in names}
    for ended in ("k_y/0002", "k_y/9998"):
        await book.ledger.cancel(jobs[ended].job_id)
    found = await book.ledger.open_under("k_y")
    # What has ended is known, and its successor a part; what went before it may be forgotten.
    assert [job.request_key for job in found] == ["k_y/10000", "k_y/9999", "k_y/0003", "k_y/0001", "k_y"]
    assert [job.request_key for job in await book.ledger.open_under("k_y/0001")] == ["k_y/0001/0001", "k_y/0001"]
    await book.ledger.cancel(jobs["kxy/0001"].job_id)
    assert await book.ledger.open_under("kxy") == [], "known, and none of it is open"
    with pytest.raises(InvalidRequest, match="'alone'"):
        await book.ledger.open_under("alone")
    with pytest.raises(InvalidRequest, match="'k%y'") as refusal:
        await book.ledger.open_under("k%y")
    assert refusal.value.details == {"request_key": "k%y"}


# --- on a lane -------------------------------------------------------------------------------------------------------


async def test_a_running_job_that_is_wanted_no_more_keeps_what_is_computed(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24))).job
        behind = (await bench.submit(numbered("behind", 9))).job
        await lane.begun()
        with anyio.fail_after(30):
            ended = await bench.dispatcher.cancel(job.job_id)
        assert (ended.state, ended.items_done, ended.error_json) == ("cancelled", 8, None)
        assert "error" not in job_status(ended)
        assert await bench.vectors(job.job_id) == {item: named_vector(item, 4) for item in lane.computed[0]}
        assert await bench.ledger.inputs(job.job_pk or 0, 0) is None, "its texts are not kept"
        assert (await bench.dispatcher.cancel(job.job_id)).terminal_at_ms == ended.terminal_at_ms
        # The lane is free for the next one.
        assert lane.hold is not None
        lane.hold.set()
        assert (await bench.ended(behind.job_id)).state == "done"
        # The same key goes on.
        computed = len(lane.computed)
        again = (await bench.submit(numbered("k", 24))).job
        assert (await bench.ended(again.job_id)).state == "done"
        assert sum(map(len, lane.computed[computed:])) == 16
        assert await bench.vectors(again.job_id) == expected("k", range(24))
        assert bench.ledger.counters.to_wire() == {
            "jobs_minted": 3,
            "jobs_completed": 2,
            "jobs_failed": 1,
            "jobs_inherited": 0,
            "jobs_open": 0,
        }


async def test_a_queued_job_that_is_wanted_no_more_is_never_begun(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        first = (await bench.submit(numbered("first", 8))).job
        queued = (await bench.submit(numbered("queued", 8))).job
        assert (await bench.dispatcher.cancel(queued.job_id)).state == "cancelled"
        lane.hold.set()
        assert (await bench.ended(first.job_id)).state == "done"
        last = (await bench.submit(numbered("last", 8))).job
        await bench.ended(last.job_id)
        assert [group[0].split("-")[0] for group in lane.computed] == ["first", "last"]
        with pytest.raises(InvalidRequest, match="no job 'never'"):
            await bench.dispatcher.cancel("never")


async def test_a_job_that_waits_for_its_lane_to_load_can_be_ended(path: Path) -> None:
    lane = NoOpLane()
    lane.load_refusals = [ModelLoading("being replaced", retry_after_ms=3_600_000)]
    async with job_bench(path, lane) as bench:
        job = (await bench.submit(numbered("k", 9))).job
        await bench.when(job.job_id, lambda job: job.state == "running" and not lane.load_refusals)
        with anyio.fail_after(30):
            assert (await bench.dispatcher.cancel(job.job_id)).state == "cancelled"
        assert (lane.holders, lane.computed) == ([], [])


@pytest.mark.parametrize("turns", [*range(0, 60, 6), 100, 200, 400, 800, 1600])
async def test_whenever_a_job_is_cancelled_it_ends_once_and_whole(path: Path, turns: int) -> None:
    """Cancelled after any number of turns of the event loop, in every state it goes through."""
    async with job_bench(path, limits=SMALL_PAGES) as bench:
        job = (await bench.submit(numbered("k", 40))).job
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(30):
            ended = await bench.dispatcher.cancel(job.job_id)
        assert ended.state in ("cancelled", "done")
        kept = await bench.vectors(job.job_id)
        assert len(kept) == ended.items_done
        assert (await bench.ended(job.job_id)).state == ended.state
        assert bench.ledger.counters.open == 0
        bench.lane.computed.clear()
        again = (await bench.submit(numbered("k", 40))).job
        assert (await bench.ended(again.job_id)).state == "done"
        assert sum(map(len, bench.lane.computed)) == 40 - len(kept), "nothing is computed twice"
        assert await bench.vectors(again.job_id) == expected("k", range(40))
