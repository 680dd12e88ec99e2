"""Which clock of a job runs when, and what stops it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from synapse_host.jobs.clocks import ClockLengths, JobClocks

LENGTHS = ClockLengths(execution_ms=1000, retention_ms=500, resume_ms=300)
TIMES = st.integers(0, 5000)


def test_a_deadline_only_shortens_the_time_to_run() -> None:
    assert JobClocks.started(LENGTHS, 10).execution_expires_ms == 1010
    assert JobClocks.started(LENGTHS, 10, deadline_ms=20).execution_expires_ms == 30
    assert JobClocks.started(LENGTHS, 10, deadline_ms=2000).execution_expires_ms == 1010


@given(st.lists(st.tuples(TIMES, TIMES), max_size=6))
def test_pauses_take_nothing_from_the_time_to_run(spells: list[tuple[int, int]]) -> None:
    clocks, now, ran = JobClocks.started(LENGTHS, 0), 0, 0
    for running, pausing in spells:
        now, ran = now + running, ran + running
        assert clocks.execution_over(now) is (ran >= 1000)
        clocks = clocks.paused(now, LENGTHS.resume_ms)
        now += pausing
        assert not clocks.execution_over(now)
        assert clocks.login_over(now) is (pausing >= 300)
        clocks = clocks.resumed(now)
        assert not clocks.login_over(now)
    assert clocks.execution_expires_ms - now == 1000 - ran


@given(ended_at=TIMES, now=TIMES)
def test_results_are_kept_from_the_end_on(ended_at: int, now: int) -> None:
    running = JobClocks.started(LENGTHS, 0)
    assert not running.results_over(now)
    ended = running.ended(ended_at)
    assert ended.results_over(now) is (now >= ended_at + 500)
    assert not ended.execution_over(now)


def test_the_end_of_a_paused_job_stops_its_resume_clock() -> None:
    ended = JobClocks.started(LENGTHS, 0).paused(5, 300).ended(400)
    assert not ended.login_over(10_000)
    assert ended.results_over(900)


def test_a_time_of_day_that_went_back_gives_no_time_away() -> None:
    clocks = JobClocks.started(LENGTHS, 1000).paused(1500, 300).resumed(1200)
    assert clocks.execution_expires_ms == 2000
