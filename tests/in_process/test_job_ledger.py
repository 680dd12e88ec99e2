"""The book of jobs over a real store: keys, pages, clocks, restarts, and counts that always agree."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synapse_host.errors import (
    EngineCrashed,
    IdempotencyConflict,
    InvalidRequest,
    NotCertified,
    ProbeRequired,
    QueueFull,
    StoreFailure,
)
from synapse_host.jobs.job_state import OPEN, JobState
from synapse_host.jobs.ledger import JobLedger
from synapse_host.store import job_store
from synapse_host.store.job_tables import JobRow
from synapse_host.testing.job_book import DAY_MS, Book, key, page, submission

pytestmark = pytest.mark.anyio


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    opened = Book(tmp_path / "synapse.sqlite3")
    yield opened
    opened.store.close()


async def test_a_new_key_begins_a_job_and_the_same_content_attaches(book: Book) -> None:
    first = await book.ledger.admit(submission())
    again = await book.ledger.admit(submission())
    assert first.fresh
    assert not again.fresh
    assert again.job.job_id == first.job.job_id
    assert book.texts_kept(first.job) == [0, 1, 2]
    assert book.ledger.counters.to_wire()["jobs_minted"] == 1


async def test_a_key_is_bound_to_its_content(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    with pytest.raises(IdempotencyConflict, match="'k'") as refusal:
        await book.ledger.admit(submission(texts=("a", "bb", "other")))
    assert refusal.value.details == {"request_key": "k", "job_id": job.job_id}
    assert (await book.ledger.admit(submission("other key", texts=("a",)))).fresh


async def test_a_done_job_is_attached_to_and_its_texts_are_gone(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0, 1))
    await book.ledger.commit_page(key(job), page(2))
    await book.ledger.finish(key(job))
    again = (await book.ledger.admit(submission())).job
    assert (again.job_id, again.state, again.page_count, again.items_done) == (job.job_id, "done", 2, 3)
    assert book.texts_kept(job) == []


async def test_a_failed_job_is_begun_again_with_what_it_committed(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0, 2))
    await book.ledger.fail(key(job), EngineCrashed("worker gone"))
    failed = await book.ledger.job(job.job_id)
    assert (failed.state, failed.page_count) == ("failed_transient", 1)
    again = await book.ledger.admit(submission())
    assert again.fresh
    assert again.job.job_id != job.job_id
    assert (again.job.page_count, again.job.items_done) == (1, 2)
    assert book.texts_kept(again.job) == [1]
    await book.ledger.claim(key(again.job))
    await book.ledger.commit_page(key(again.job), page(1))
    await book.ledger.finish(key(again.job))
    assert (await book.ledger.job(job.job_id)).page_count == 1, "the first attempt shows what it had"


async def test_another_fingerprint_shares_no_page(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0, 1, 2))
    await book.ledger.finish(key(job))
    again = await book.ledger.admit(submission(fingerprint="e" * 64))
    assert again.fresh
    assert (again.job.page_count, book.texts_kept(again.job)) == (0, [0, 1, 2])


async def test_an_item_is_committed_once(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0, 1))
    with pytest.raises(StoreFailure, match="UNIQUE"):
        await book.ledger.commit_page(key(job), page(1, 2))
    after = await book.ledger.job(job.job_id)
    assert (after.page_count, after.items_done) == (1, 2)
    with pytest.raises(RuntimeError, match="2 of 3 items"):
        await book.ledger.finish(key(job))


async def test_pages_are_committed_by_a_running_job_alone(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    with pytest.raises(RuntimeError, match="queued"):
        await book.ledger.commit_page(key(job), page(0))


async def test_a_job_runs_in_one_pair_of_hands(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    assert await book.ledger.claim(key(job)) is not None
    assert await book.ledger.claim(key(job)) is None


async def test_a_job_that_waited_past_its_time_fails_when_its_turn_comes(book: Book) -> None:
    job = (await book.ledger.admit(submission(deadline_ms=50))).job
    book.now += 50
    assert await book.ledger.claim(key(job)) is None
    failed = await book.ledger.job(job.job_id)
    assert failed.state == "failed_transient"
    assert failed.error_json is not None
    assert "deadline_exceeded" in failed.error_json
    assert "50 ms" in failed.error_json


async def test_a_paused_job_waits_for_its_login_and_goes_on(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    paused = await book.ledger.pause(key(job), "handle")
    assert (paused.state, paused.resume_deadline_ms) == ("paused_needs_reauth", DAY_MS + 300)
    book.now += 299
    await book.ledger.sweep()
    resumed, was_paused = await book.ledger.resume(job.job_id)
    assert was_paused
    assert (resumed.state, resumed.execution_expires_ms) == ("queued", DAY_MS + 1000 + 299)
    assert await book.ledger.resume(job.job_id) == (resumed, False)


async def test_the_same_submission_resumes_a_paused_job(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.pause(key(job), "handle")
    again = await book.ledger.admit(submission())
    assert (again.resumed, again.fresh, again.job.state) == (True, False, "queued")


async def test_a_login_that_comes_too_late_ends_the_job(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.pause(key(job), "handle")
    book.now += 300
    assert not (await book.ledger.resume(job.job_id))[1]
    await book.ledger.sweep()
    ended = await book.ledger.job(job.job_id)
    assert (ended.state, ended.terminal_at_ms) == ("failed_permanent", book.now)
    assert "needs_reauth_expired" in str(ended.error_json)


async def test_a_restart_ends_what_was_open_and_keeps_its_pages(book: Book, caplog: pytest.LogCaptureFixture) -> None:
    queued, running, paused = [(await book.ledger.admit(submission(name))).job for name in ("q", "r", "p")]
    await book.ledger.claim(key(running))
    await book.ledger.commit_page(key(running), page(0))
    await book.ledger.pause(key(paused), "handle")
    book.reboot()
    with caplog.at_level(logging.INFO):
        assert await book.ledger.reconcile() == 3
    assert book.open_rows() == 0
    assert book.ledger.counters.to_wire() == {
        "jobs_minted": 0,
        "jobs_completed": 0,
        "jobs_failed": 3,
        "jobs_inherited": 3,
        "jobs_open": 0,
    }
    for job in (queued, running, paused):
        ended = await book.ledger.job(job.job_id)
        assert ended.state == "failed_transient"
        assert '"module_restarted"' in str(ended.error_json)
        assert sum(job.job_id in record.message for record in caplog.records) == 1
    assert (await book.ledger.admit(submission("r"))).job.page_count == 1
    assert await book.ledger.reconcile() == 0


async def test_results_go_when_they_were_kept_long_enough(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0, 1, 2))
    await book.ledger.finish(key(job))
    book.now += 499
    assert await book.ledger.sweep() == 0
    book.now += 1
    assert await book.ledger.sweep() == 1
    with pytest.raises(InvalidRequest, match=job.job_id):
        await book.ledger.job(job.job_id)
    tables = ("jobs", "job_works", "job_pages", "job_items", "job_inputs")
    counts = book.store.look(
        lambda session: [
            session.connection().exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() for table in tables
        ]
    )
    assert counts == [0] * len(tables)
    assert (await book.ledger.admit(submission(texts=("new",)))).fresh, "the key is free again"


async def test_pages_of_a_shared_work_outlive_the_first_attempt(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.claim(key(job))
    await book.ledger.commit_page(key(job), page(0))
    await book.ledger.fail(key(job), EngineCrashed("worker gone"))
    again = (await book.ledger.admit(submission())).job
    book.now += 600
    assert await book.ledger.sweep() == 1
    assert book.store.look(lambda session: job_store.page_of(session, again.work_pk, 0)) is not None


async def test_an_expired_key_is_free_without_a_sweep(book: Book) -> None:
    job = (await book.ledger.admit(submission())).job
    await book.ledger.fail(key(job), NotCertified("no"))
    book.now += 500
    assert (await book.ledger.admit(submission(texts=("other",)))).fresh


async def test_so_many_jobs_are_open_at_once(tmp_path: Path) -> None:
    book = Book(tmp_path / "synapse.sqlite3", most_open=2)
    await book.ledger.admit(submission("a"))
    await book.ledger.admit(submission("b"))
    with pytest.raises(QueueFull, match=r"2 embed jobs.*jobs\.max_open"):
        await book.ledger.admit(submission("c"))
    assert not (await book.ledger.admit(submission("b"))).fresh, "a known key needs no room"
    book.store.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("admit", "claim", "page", "finish", "crash", "quarantine", "pause", "resume", "cancel", "put_down"),
                *("wait", "sweep", "reboot"),
            ]
        ),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=25,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=STEPS)
def test_whatever_happens_the_counters_agree_with_the_rows(
    steps: list[tuple[str, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    book = Book(tmp_path_factory.mktemp("book") / "synapse.sqlite3")
    try:
        anyio.run(_wander, book, steps)
    finally:
        book.store.close()


async def _wander(book: Book, steps: list[tuple[str, int, bool]]) -> None:
    jobs: dict[int, JobRow] = {}
    before: dict[str, str] = {}
    for what, number, cancelled in steps:
        # What the state does not allow, an IllegalJobMove above all, must have changed nothing.
        with suppress(RuntimeError, StoreFailure), anyio.CancelScope() as scope:
            if cancelled and what not in ("wait", "reboot"):
                # The caller goes away while the transaction is under way.
                asyncio.get_running_loop().call_soon(scope.cancel)
            await _step(book, what, number, jobs)
        assert book.ledger.counters.open == book.open_rows(), what
        for job in jobs.values():
            found = await book.ledger.find(job.job_id)
            if found is None:
                continue
            assert JobState(before.get(job.job_id, "queued")) in OPEN or before[job.job_id] == found.state
            before[job.job_id] = found.state


async def _step(book: Book, what: str, number: int, jobs: dict[int, JobRow]) -> None:
    ledger = book.ledger
    if what == "admit":
        jobs[number] = (await ledger.admit(submission(f"key {number}"))).job
    elif what == "wait":
        book.now += 150 * (number + 1)
    elif what == "sweep":
        await ledger.sweep()
    elif what == "reboot":
        book.reboot()
        await book.ledger.reconcile()
    elif number in jobs and await ledger.find(jobs[number].job_id) is not None:
        await _to_job(ledger, what, jobs[number])


async def _to_job(ledger: JobLedger, what: str, job: JobRow) -> None:
    now = await ledger.job(job.job_id)
    steps = {
        "claim": lambda: ledger.claim(key(job)),
        "page": lambda: ledger.commit_page(key(job), page(now.items_done)),
        "finish": lambda: ledger.finish(key(job)),
        "crash": lambda: ledger.fail(key(job), EngineCrashed("gone")),
        "quarantine": lambda: ledger.fail(key(job), ProbeRequired("quarantined")),
        "pause": lambda: ledger.pause(key(job), "handle"),
        "resume": lambda: ledger.resume(job.job_id),
        "cancel": lambda: ledger.cancel(job.job_id),
        "put_down": lambda: ledger.cancel_running(key(job)),
    }
    await steps[what]()
