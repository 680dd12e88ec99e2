"""Work of any size through jobs, seen from the client: parts, pages in any order, restarts in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from synapse_host.client import durable
from synapse_host.client.async_client import AsyncClient
from synapse_host.client.blocking_client import Client
from synapse_host.client.faults import JobCancelled, ReplyMismatch
from synapse_host.client.job_parts import JobPart, job_parts
from synapse_host.errors import (
    EXCEPTIONS,
    DeadlineExceeded,
    EngineCrashed,
    ModuleRestarted,
    NotCertified,
    StoreFailure,
    SynapseError,
)
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.settings import resolve_paths
from synapse_host.testing.fake_methods import ItemsParams, fake_embedding, fake_vector
from synapse_host.testing.in_process_host import in_process_host

pytestmark = pytest.mark.anyio
DEADLINE_S = 60


class BatchParams(ItemsParams):
    """Takes items under a key."""

    request_key: str


class ResultParams(BaseModel):
    """Takes a place in a job."""

    model_config = ConfigDict(extra="forbid")
    job_id: str
    cursor: str | None = None


class NoParams(BaseModel):
    """Takes nothing."""

    model_config = ConfigDict(extra="forbid")


class CancelParams(BaseModel):
    """Takes a job."""

    model_config = ConfigDict(extra="forbid")
    job_id: str


@dataclass(slots=True)
class FakeJobs:
    """embed.batch and embed.result of a host that knows no store: ``page`` rows a page, in reversed order.

    ``failures`` end the first attempts at a key after a page; ``spoil`` may change a page before it is sent.
    ``found`` rows are said to be there when a job is handed in. The jobs of ``cancelled`` were ended by somebody.
    ``refusals`` are what the first hand-ins meet, and ``phases`` what is said of a pause.
    """

    page: int = 3
    inline: int = 2
    found: int = 0
    failures: list[SynapseError] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    jobs: dict[str, tuple[list[tuple[str, str]], SynapseError | None]] = field(default_factory=dict)
    waits: int = 1
    cancelled: list[str] = field(default_factory=list)
    refusals: list[SynapseError] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    spoil: Callable[[dict[str, Any]], None] = lambda payload: None

    async def batch(self, params: BatchParams, context: RequestContext) -> Reply:
        """Answer a small batch, make a job of another."""
        if self.refusals:
            raise self.refusals.pop(0)
        pairs = [(item["id"], item["text"]) for item in params.items]
        self.keys.append(params.request_key)
        if len(pairs) <= self.inline:
            return fake_embedding(pairs)
        job_id = f"job-{len(self.keys)}"
        self.jobs[job_id] = pairs[::-1], self.failures.pop(0) if self.failures else None
        return Reply({"job_id": job_id, "state": "queued", "fingerprint": "f", "items_done": self.found})

    async def result(self, params: ResultParams, context: RequestContext) -> Reply:
        """One page, or nothing yet the first times."""
        pairs, failure = self.jobs[params.job_id]
        if self.waits:
            self.waits -= 1
            return Reply({"state": "running", "vectors": [], "next_cursor": params.cursor or "0"})
        first = int(params.cursor or 0)
        rows = pairs[first : first + self.page]
        answer = fake_embedding(rows)
        payload = answer.payload
        over = failure is not None or first + self.page >= len(pairs)
        payload["state"] = "running" if not over else "done" if failure is None else "failed_transient"
        if params.job_id in self.cancelled:
            return Reply({"state": "cancelled", "vectors": []})
        if failure is not None:
            payload["error"] = failure.to_wire()
            if failure.error_class == "permanent" and not isinstance(failure, ModuleRestarted):
                payload["state"] = "failed_permanent"
        if not over:
            payload["next_cursor"] = str(first + self.page)
        self.spoil(payload)
        return answer

    async def status(self, params: NoParams, context: RequestContext) -> Reply:
        """The next phase of a pause."""
        return Reply({"phase": self.phases.pop(0)})

    async def cancel(self, params: CancelParams, context: RequestContext) -> Reply:
        """Note that a job is wanted no more."""
        self.cancelled.append(params.job_id)
        return Reply({"job_id": params.job_id, "state": "cancelled"})


@asynccontextmanager
async def connected(home: Path, jobs: FakeJobs) -> AsyncIterator[AsyncClient]:
    methods = [
        Method("embed.batch", "query", BatchParams, jobs.batch),
        Method("embed.result", "query", ResultParams, jobs.result),
        Method("job.cancel", "mutate", CancelParams, jobs.cancel),
        Method("lanes.status", "query", NoParams, jobs.status),
    ]
    with anyio.fail_after(DEADLINE_S):
        async with in_process_host(home, methods) as host, await AsyncClient.connect(host.socket) as client:
            yield client


TEXTS = [f"{'word ' * (place % 7)}{place}" for place in range(20)]


async def test_what_a_job_waits_for_is_told_once(tmp_path: Path) -> None:
    full = StoreFailure("the disk is full")

    def stand_still(payload: dict[str, Any]) -> None:
        payload["waiting_for"] = full.to_wire()

    told: list[Exception] = []
    async with connected(tmp_path, FakeJobs(spoil=stand_still)) as client:
        parts = list(job_parts((str(place), text) for place, text in enumerate(TEXTS)))
        replies = [reply async for reply in client.embed_jobs("m", parts, request_key="k", on_wait=told.append)]
    assert len(replies) == 1
    assert [(type(error), str(error)) for error in told] == [(StoreFailure, str(full))]


async def test_a_job_that_is_cancelled_and_not_yet_written_down_as_such_is_waited_for_no_longer(tmp_path: Path) -> None:
    ends = StoreFailure("it is cancelled; the disk is full", details={"ends_as": "cancelled"})

    def stand_still(payload: dict[str, Any]) -> None:
        payload["waiting_for"] = ends.to_wire()

    jobs = FakeJobs(spoil=stand_still)
    async with connected(tmp_path, jobs) as client:
        parts = list(job_parts(((str(place), text) for place, text in enumerate(TEXTS)), max_items=10))
        with pytest.raises(JobCancelled):
            [reply async for reply in client.embed_jobs("m", parts, request_key="k")]
    assert len(jobs.cancelled) == 1, "nor is the part behind it"


async def test_embed_many_with_a_key_shows_jobs_as_one(tmp_path: Path) -> None:
    jobs = FakeJobs()
    progress: list[tuple[int, int]] = []
    async with connected(tmp_path, jobs) as client:
        reply = await client.embed_many("m", TEXTS, request_key="k", on_progress=lambda *step: progress.append(step))
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in TEXTS]
    assert reply.ids == tuple(map(str, range(20)))
    assert reply.real_token_counts == tuple(len(text.split()) for text in TEXTS)
    assert jobs.keys == ["k/0001"]
    assert progress[-1] == (20, 20)


async def test_parts_come_in_order_and_are_handed_in_ahead(tmp_path: Path) -> None:
    jobs = FakeJobs()
    parts = list(job_parts(((f"id-{n}", text) for n, text in enumerate(TEXTS)), max_items=3))
    handed: list[int] = []
    async with connected(tmp_path, jobs) as client:
        seen: list[str] = []
        async for reply in client.embed_jobs("m", parts, request_key="k"):
            handed.append(len(jobs.keys))
            seen += reply.ids
    assert seen == [f"id-{n}" for n in range(20)]
    assert jobs.keys == [f"k/{n:04d}" for n in range(1, 8)]
    assert handed == [5, 6, 7, 7, 7, 7, 7]


async def test_rows_that_were_there_are_told_apart(tmp_path: Path) -> None:
    jobs = FakeJobs(page=3, found=7)
    told: list[tuple[str, int]] = []
    async with connected(tmp_path, jobs) as client:
        replies = client.embed_jobs(
            "m",
            job_parts((str(n), text) for n, text in enumerate(TEXTS)),
            request_key="k",
            on_rows=lambda rows: told.append(("rows", rows)),
            on_found=lambda rows: told.append(("found", rows)),
        )
        assert [len(reply.ids) async for reply in replies] == [20]
    steps = [step for step in told if step[1]]
    assert steps[:7] == [("found", 3), ("rows", 3), ("found", 3), ("rows", 3), ("found", 1), ("rows", 3), ("rows", 3)]
    assert {name for name, _ in steps[7:]} == {"rows"}


async def test_a_blocking_client_does_the_same(tmp_path: Path) -> None:
    jobs = FakeJobs()

    def embed(socket: Path) -> tuple[list[list[float]], list[tuple[str, ...]]]:
        with Client.connect(socket) as client:
            whole = client.embed_many("m", TEXTS, request_key="k")
            parts = job_parts(((str(n), text) for n, text in enumerate(TEXTS)), max_items=9)
            return whole.vectors.tolist(), [reply.ids for reply in client.embed_jobs("m", parts, request_key="l")]

    socket = resolve_paths({"SYNAPSE_HOME": str(tmp_path)}).host_socket
    async with connected(tmp_path, jobs):
        vectors, ids = await anyio.to_thread.run_sync(embed, socket, abandon_on_cancel=True)
    assert vectors == [list(fake_vector(text)) for text in TEXTS]
    assert [len(part) for part in ids] == [9, 9, 2]


@pytest.mark.parametrize("failure", [EngineCrashed("gone", retry_after_ms=1), ModuleRestarted("restarted")])
async def test_a_job_that_failed_for_now_is_handed_in_again(tmp_path: Path, failure: SynapseError) -> None:
    jobs = FakeJobs(failures=[failure])
    rows: list[int] = []
    async with connected(tmp_path, jobs) as client:
        parts = job_parts(((str(n), text) for n, text in enumerate(TEXTS)))
        (reply,) = [
            reply async for reply in client.embed_jobs("m", parts, request_key="k", retries=1, on_rows=rows.append)
        ]
    assert reply.vectors.tolist() == [list(fake_vector(text)) for text in TEXTS]
    assert jobs.keys == ["k/0001", "k/0001"]
    assert sum(rows) == 20


@pytest.mark.parametrize(
    ("failure", "retries"),
    [
        (EngineCrashed("gone", retry_after_ms=1), 0),
        (NotCertified("no"), 5),
        (EngineCrashed("killed by an item", details={"item_id": "7"}), 5),
        (DeadlineExceeded("out of time"), 5),
    ],
)
async def test_a_job_that_failed_for_good_raises_its_error(tmp_path: Path, failure: SynapseError, retries: int) -> None:
    async with connected(tmp_path, FakeJobs(failures=[failure])) as client:
        with pytest.raises(type(failure)):
            await client.embed_many("m", TEXTS, request_key="k", retries=retries)


@pytest.mark.parametrize("met", ["when it is handed in", "while it runs"])
async def test_a_pause_is_waited_out_and_no_longer_than_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, met: str
) -> None:
    monkeypatch.setattr(durable, "_PAUSE_LOOK_S", 0.001)
    paused = EXCEPTIONS["lane_paused"]("the lane is paused for an hour", retry_after_ms=3_600_000)
    jobs = FakeJobs(phases=["draining", "paused", "waiting_for_lock", "running"])
    (jobs.refusals if met == "when it is handed in" else jobs.failures).append(paused)
    told: list[Exception] = []
    async with connected(tmp_path, jobs) as client:
        reply = await client.embed_many("m", TEXTS, request_key="k", retries=1, on_wait=told.append)
        assert reply.vectors.tolist() == [list(fake_vector(text)) for text in TEXTS]
        assert jobs.phases == [], "it looked until the pause was over"
        assert [(type(error), str(error)) for error in told] == [(type(paused), str(paused))]
        # Who does not want to try again is told at once.
        jobs.refusals.append(paused)
        with pytest.raises(type(paused)):
            await client.embed_many("m", TEXTS, request_key="k")


async def test_a_cancelled_job_ends_the_work_and_the_jobs_behind_it(tmp_path: Path) -> None:
    jobs = FakeJobs(page=100, cancelled=["job-2"])
    async with connected(tmp_path, jobs) as client:
        parts = job_parts(((str(n), text) for n, text in enumerate(TEXTS)), max_items=3)
        replies = client.embed_jobs("m", parts, request_key="k", retries=9)
        assert (await anext(replies)).ids == ("0", "1", "2")
        with pytest.raises(JobCancelled, match="job job-2 was cancelled") as ended:
            await anext(replies)
        assert ended.value.job_id == "job-2"
    assert jobs.cancelled == ["job-2", "job-3", "job-4", "job-5", "job-6"], "all that were handed in, and no other"
    assert len(jobs.keys) == 6


def _other_digest(payload: dict[str, Any]) -> None:
    payload["vectors"][0]["submitted_sha256"] = "0" * 64


def _other_item(payload: dict[str, Any]) -> None:
    payload["vectors"][0]["id"] = "nobody's"


def _missing_field(payload: dict[str, Any]) -> None:
    del payload["real_token_counts"]


def _row_withheld(payload: dict[str, Any]) -> None:
    if payload["state"] == "done":
        payload["vectors"][0]["id"] = "19"
        payload["vectors"][0]["submitted_sha256"] = "0" * 64


@pytest.mark.parametrize("spoil", [_other_digest, _other_item, _missing_field, _row_withheld])
async def test_a_page_that_does_not_fit_is_never_taken(tmp_path: Path, spoil: Callable[[dict[str, Any]], None]) -> None:
    async with connected(tmp_path, FakeJobs(spoil=spoil)) as client:
        with pytest.raises(ReplyMismatch):
            await client.embed_many("m", TEXTS, request_key="k")


async def test_a_change_of_fingerprint_between_parts_is_told(tmp_path: Path) -> None:
    first = True

    def drift(payload: dict[str, Any]) -> None:
        nonlocal first
        if not first:
            payload["fingerprint"] = "another"
        first = False

    jobs = FakeJobs(page=100, spoil=drift)
    async with connected(tmp_path, jobs) as client:
        parts = job_parts(((str(n), text) for n, text in enumerate(TEXTS)), max_items=10)
        with pytest.raises(ReplyMismatch, match="fingerprint changed"):
            [reply async for reply in client.embed_jobs("m", parts, request_key="k")]


@given(
    st.lists(st.tuples(st.text(max_size=5), st.text(max_size=40)), max_size=40), st.integers(1, 9), st.integers(1, 99)
)
def test_parts_hold_every_item_once_within_their_limits(
    items: list[tuple[str, str]], max_items: int, max_bytes: int
) -> None:
    parts: list[JobPart] = list(job_parts(iter(items), max_items=max_items, max_bytes=max_bytes))
    assert [pair for part in parts for pair in zip(part.ids, part.texts, strict=True)] == items
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    for part in parts:
        size = sum(len((item + text).encode()) for item, text in zip(part.ids, part.texts, strict=True))
        assert len(part.ids) == 1 or (len(part.ids) <= max_items and size <= max_bytes)


def test_an_interrupted_iteration_leaves_the_client_usable(tmp_path: Path) -> None:
    def parts() -> Iterator[JobPart]:
        yield JobPart(1, ["a"], ["a"])
        raise KeyError("the caller's own")

    async def run() -> None:
        async with connected(tmp_path, FakeJobs()) as client:
            with pytest.raises(KeyError):
                [reply async for reply in client.embed_jobs("m", parts(), request_key="k")]
            assert (await client.embed_many("m", TEXTS, request_key="k")).vectors.shape[0] == 20

    anyio.run(run)
