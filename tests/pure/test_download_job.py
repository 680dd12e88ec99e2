"""The life of a download as a machine: every sequence of events beside a model of it, and one end only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from synapse_host.downloads.job import ENDS, STEPS, DownloadJob, DownloadState, StepRefused
from synapse_host.downloads.manifest import Manifest, WantedFile

MANIFEST = Manifest("gte", "a" * 64, (WantedFile("model", "m", "b" * 64, 10, "m"),))
ERROR = {"code": "download_failed"}


def a_job() -> DownloadJob:
    return DownloadJob("j", MANIFEST)


class Downloads(RuleBasedStateMachine):
    """Callers start, receive, verify, claim and end in any order; refused steps change nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.job = a_job()
        self.ends: list[DownloadState] = []
        self.claims: list[DownloadState] = []
        self.received: dict[str, int] = {}

    def attempt(self, step: Any, allowed: bool) -> bool:
        before = (self.job.state, self.job.error, self.job.claimed)
        try:
            step()
        except StepRefused:
            assert not allowed
            assert (self.job.state, self.job.error, self.job.claimed) == before
            return False
        assert allowed
        return True

    @rule(total=st.integers(1, 10**12))
    def start(self, total: int) -> None:
        self.attempt(lambda: self.job.start(total), self.job.state is DownloadState.QUEUED)

    @rule(name=st.sampled_from(["model", "tokenizer"]), count=st.integers(0, 10**9))
    def receive(self, name: str, count: int) -> None:
        self.job.received(name, count)
        self.received[name] = count

    @rule()
    def verify(self) -> None:
        self.attempt(self.job.verify, self.job.state is DownloadState.DOWNLOADING)

    @rule(end=st.sampled_from(sorted(ENDS)))
    def claim(self, end: DownloadState) -> None:
        won = self.job.claim(end)
        assert won == (not self.claims)
        if won:
            self.claims.append(end)

    @precondition(lambda self: not self.job.ended)
    @rule(end=st.sampled_from(sorted(ENDS)), with_error=st.booleans())
    def end_it(self, end: DownloadState, with_error: bool) -> None:
        error = ERROR if with_error else None
        fits = with_error == (end is DownloadState.FAILED)
        claimed = self.claims == [end] or (self.claims == [DownloadState.COMMITTED] and end is DownloadState.FAILED)
        if self.attempt(lambda: self.job.end(end, error), fits and claimed and end in STEPS[self.job.state]):
            self.ends.append(end)

    @precondition(lambda self: self.job.ended)
    @rule(end=st.sampled_from(sorted(ENDS)))
    def nothing_follows_an_end(self, end: DownloadState) -> None:
        for step in (lambda: self.job.end(end, None), self.job.verify, lambda: self.job.start(1)):
            self.attempt(step, allowed=False)

    @invariant()
    def one_end_and_a_flat_status(self) -> None:
        assert len(self.ends) <= 1
        assert self.job.ended == bool(self.ends)
        status = self.job.status()
        keys = {"job_id", "state"}
        if self.job.state is DownloadState.DOWNLOADING:
            keys |= {"bytes_done", "bytes_total"}
            assert status["bytes_done"] == sum(self.received.values())
        if self.job.state is DownloadState.FAILED:
            keys |= {"error"}
        assert set(status) == keys
        if self.job.state is DownloadState.COMMITTED:
            assert self.claims == [DownloadState.COMMITTED]


TestDownloads = Downloads.TestCase
TestDownloads.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_job_with_nothing_to_fetch_commits_at_once() -> None:
    job = a_job()
    assert job.claim(DownloadState.COMMITTED)
    job.end(DownloadState.COMMITTED)
    assert job.status() == {"job_id": "j", "state": "committed"}


def test_the_whole_way() -> None:
    job = a_job()
    assert job.status() == {"job_id": "j", "state": "queued"}
    job.start(30)
    job.received("model", 7)
    job.received("tokenizer", 5)
    job.received("model", 9)
    assert job.status() == {"job_id": "j", "state": "downloading", "bytes_done": 14, "bytes_total": 30}
    job.verify()
    assert job.status() == {"job_id": "j", "state": "verifying"}
    assert job.claim(DownloadState.COMMITTED)
    assert not job.claim(DownloadState.CANCELLED)
    job.end(DownloadState.FAILED, ERROR)
    assert job.status() == {"job_id": "j", "state": "failed", "error": ERROR}


def test_nothing_but_an_end_can_be_claimed() -> None:
    with pytest.raises(StepRefused):
        a_job().claim(DownloadState.VERIFYING)
