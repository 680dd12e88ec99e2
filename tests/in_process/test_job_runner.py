"""Jobs carried out over a real store: order, pages, crashes, fences, deadlines, and what survives each."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.errors import (
    EngineCrashed,
    ModelLoading,
    NotCertified,
    StoreFailure,
    SynapseError,
)
from synapse_host.hookspecs import BatchPolicy
from synapse_host.jobs import transactions
from synapse_host.jobs.job_reader import job_status
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.store.job_tables import JobRow
from synapse_host.testing.job_bench import JobBench, job_bench, numbered, submission_of
from synapse_host.testing.no_op_lane import NoOpLane, named_vector
from synapse_host.tokenization.model_tokenizer import EncodedText

pytestmark = pytest.mark.anyio
#: What is embedded to see whether the engine works.
HARMLESS = "a text of the host's own"
#: A page for about every second group.
SMALL_PAGES = PageLimits(bytes=4000, seconds=3600)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "synapse.sqlite3"


def error_of(job: JobRow) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(job.error_json or "{}")
    return error


def expected(key: str, places: range | list[int], dims: int = 4) -> dict[str, bytes]:
    return {f"{key}-{place}": named_vector(f"{key}-{place}", dims) for place in places}


async def test_a_job_gives_each_item_its_vector(path: Path) -> None:
    async with job_bench(path, limits=SMALL_PAGES) as bench:
        job = (await bench.submit(numbered("k", 1300))).job
        done = await bench.ended(job.job_id)
        assert (done.state, done.items_done) == ("done", 1300)
        assert done.page_count > 50
        assert await bench.vectors(job.job_id) == expected("k", range(1300))
        assert bench.ledger.counters.to_wire()["jobs_completed"] == 1
        assert bench.lane.holders == []


async def test_groups_are_sorted_by_length_and_full_but_for_the_last(path: Path) -> None:
    async with job_bench(path) as bench:
        submission = numbered("k", 1101)
        await bench.ended((await bench.submit(submission)).job.job_id)
        lengths = dict(zip(submission.item_ids, map(len, submission.texts), strict=True))
        groups = [[lengths[item] for item in group] for group in bench.lane.computed]
        assert [len(group) for group in groups] == [8] * 137 + [5]
        assert all(max(group) - min(group) <= 6 for group in groups[:-1])


async def test_a_group_stays_within_the_token_budget_of_the_lane(path: Path) -> None:
    async with job_bench(path, NoOpLane(policy=BatchPolicy(100, 10))) as bench:
        submission = submission_of("k", ["a", "b", "c", "d"], ["w " * 4, "w " * 5, "w " * 9, "w " * 50])
        await bench.ended((await bench.submit(submission)).job.job_id)
        assert bench.lane.computed == [["a", "b"], ["c"], ["d"]]


async def test_pages_are_read_while_the_job_runs(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane, limits=PageLimits(bytes=1, seconds=3600)) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24))).job
        with anyio.fail_after(30):
            await lane.entered.wait()
        assert lane.holders == [{"kind": "job", "job_id": job.job_id}]
        gate, lane.hold = lane.hold, anyio.Event()
        gate.set()
        running = await bench.when(job.job_id, lambda job: job.page_count == 1)
        assert running.state == "running"
        assert await bench.vectors(job.job_id) == {item: named_vector(item, 4) for item in lane.computed[0]}
        lane.hold.set()
        await bench.ended(job.job_id)
        assert len(await bench.vectors(job.job_id)) == 24


async def test_computed_rows_are_committed_after_a_while(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane, limits=PageLimits(bytes=1 << 30, seconds=0)) as bench:
        job = (await bench.submit(numbered("k", 24))).job
        assert (await bench.ended(job.job_id)).page_count == 3


async def test_jobs_of_a_lane_run_in_the_order_of_admission(path: Path) -> None:
    async with job_bench(path) as bench:
        jobs = [(await bench.submit(numbered(name, 20))).job for name in ("a", "b", "c")]
        for job in jobs:
            assert (await bench.ended(job.job_id)).state == "done"
        order = [item.split("-")[0] for group in bench.lane.computed for item in group]
        assert order == ["a"] * 20 + ["b"] * 20 + ["c"] * 20


# --- crashes -------------------------------------------------------------------------------------------------------


async def test_a_crash_costs_its_group_a_second_try_and_nothing_else(path: Path) -> None:
    lane = NoOpLane()
    lane.crash_on = {"k-3": 1}
    async with job_bench(path, lane) as bench:
        job = (await bench.submit(numbered("k", 60))).job
        assert (await bench.ended(job.job_id)).state == "done"
        assert await bench.vectors(job.job_id) == expected("k", range(60))
    flat = [item for group in lane.computed for item in group]
    assert sorted(flat) == sorted([*expected("k", range(60)), HARMLESS])
    assert [len(group) for group in lane.computed[-9:]] == [1] * 9
    assert lane.computed[-9] == [HARMLESS]
    assert ["k-3"] in lane.computed


async def test_an_item_that_kills_the_engine_is_named_and_the_others_are_kept(path: Path) -> None:
    lane = NoOpLane()
    lane.crash_on = {"k-3": 99}
    async with job_bench(path, lane) as bench:
        job = (await bench.submit(numbered("k", 60))).job
        failed = await bench.ended(job.job_id)
        assert failed.state == "failed_transient"
        error = error_of(failed)
        assert error["code"] == "engine_crashed"
        assert error["details"] == {"reason": "exited", "item_id": "k-3"}
        assert "'k-3'" in error["message"]
        assert failed.items_done >= 52
        assert len(await bench.vectors(job.job_id)) == failed.items_done
        lane.crash_on = {}
        lane.computed.clear()
        again = (await bench.submit(numbered("k", 60))).job
        assert (await bench.ended(again.job_id)).state == "done"
        assert sum(map(len, lane.computed)) == 60 - failed.items_done
        assert await bench.vectors(again.job_id) == expected("k", range(60))


@pytest.mark.parametrize("count", [1, 2, 9, 60])
async def test_an_item_that_kills_the_engine_never_does_so_twice_in_a_row(path: Path, count: int) -> None:
    """Two crashes in a row would quarantine the model for everybody; the longest text is computed last."""
    lane = NoOpLane()
    lane.crash_on = {"bad": 99}
    async with job_bench(path, lane) as bench:
        good = numbered("k", count - 1)
        for _ in range(2):
            asked = submission_of("k", [*good.item_ids, "bad"], [*good.texts, "word " * 20])
            failed = await bench.ended((await bench.submit(asked)).job.job_id)
            assert (error_of(failed)["details"]["item_id"], failed.items_done) == ("bad", count - 1)
    assert lane.crash_on == {"bad": 95}
    assert lane.crashes_in_a_row == 1
    assert lane.computed[-1] == [HARMLESS]


async def test_an_engine_that_works_no_more_is_blamed_on_no_item(path: Path) -> None:
    lane = NoOpLane()
    lane.crash_on = {"k-0": 1, HARMLESS: 1}
    async with job_bench(path, lane) as bench:
        failed = await bench.ended((await bench.submit(numbered("k", 1))).job.job_id)
        assert (failed.state, error_of(failed)["details"]) == ("failed_transient", {"reason": "exited"})


async def test_an_engine_that_crashes_again_and_again_ends_the_job(path: Path) -> None:
    lane = NoOpLane()
    lane.crash_on = {f"k-{place}": 1 for place in range(60)}
    async with job_bench(path, lane) as bench:
        failed = await bench.ended((await bench.submit(numbered("k", 60))).job.job_id)
        assert (failed.state, error_of(failed)["code"]) == ("failed_transient", "engine_crashed")


async def test_an_output_that_is_no_vector_is_not_tried_again(path: Path) -> None:
    lane = NoOpLane()

    async def broken(rows: Any, item_ids: Any) -> Any:
        raise EngineCrashed("NaN", details={"reason": "non_finite_output", "item_id": "k-1"}, error_class="permanent")

    lane.embed = broken  # type: ignore[method-assign]
    async with job_bench(path, lane) as bench:
        failed = await bench.ended((await bench.submit(numbered("k", 3))).job.job_id)
        assert (failed.state, error_of(failed)["details"]["item_id"]) == ("failed_permanent", "k-1")


async def test_an_item_without_a_token_ends_the_job_when_all_others_have_their_vectors(path: Path) -> None:
    lane = NoOpLane()
    tokens = lane.encoder.encode

    def wordless(texts: Sequence[str]) -> list[EncodedText]:
        return [replace(row, ids=[]) if text == "none" else row for text, row in zip(texts, tokens(texts), strict=True)]

    lane.encoder.encode = wordless  # type: ignore[method-assign]
    good = numbered("k", 60)
    async with job_bench(path, lane) as bench:
        asked = submission_of("k", [*good.item_ids, "x", "y"], [*good.texts, "none", "none"])
        failed = await bench.ended((await bench.submit(asked)).job.job_id)
        assert (failed.state, failed.items_done) == ("failed_permanent", 60)
        assert error_of(failed)["details"] == {"item_id": "x"}
        assert await bench.vectors(failed.job_id) == expected("k", range(60))


# --- fences and clocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "state"),
    [(NotCertified("demoted"), "failed_permanent"), (EngineCrashed("cooling down"), "failed_transient")],
    ids=["permanent", "transient"],
)
async def test_a_fence_put_up_meanwhile_is_met_at_the_next_group(path: Path, refusal: SynapseError, state: str) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24))).job
        with anyio.fail_after(30):
            await lane.entered.wait()
        lane.refusal = refusal
        lane.hold.set()
        failed = await bench.ended(job.job_id)
        assert (failed.state, error_of(failed)["code"]) == (state, refusal.code)
        assert failed.items_done == 8, "the group under way was finished and kept"
        queued = (await bench.submit(numbered("other", 9))).job
        assert error_of(await bench.ended(queued.job_id))["code"] == refusal.code


async def test_a_job_waits_for_its_lane_to_load_and_never_fails_with_model_loading(path: Path) -> None:
    lane = NoOpLane()
    lane.load_refusals = [ModelLoading("being replaced", retry_after_ms=1) for _ in range(3)]
    async with job_bench(path, lane) as bench:
        assert (await bench.ended((await bench.submit(numbered("k", 9))).job.job_id)).state == "done"


async def test_a_job_that_runs_out_of_time_keeps_what_it_has(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane, time_is_up, allowed = NoOpLane(), anyio.CancelScope(), []

    def limit(seconds: float) -> anyio.CancelScope:
        allowed.append(seconds)
        return time_is_up

    monkeypatch.setattr(anyio, "move_on_after", limit)
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24, deadline_ms=60_000))).job
        await lane.begun()
        time_is_up.cancel()
        failed = await bench.ended(job.job_id)
        assert [0 < seconds <= 60 for seconds in allowed] == [True]
        assert (failed.state, error_of(failed)["code"]) == ("failed_transient", "deadline_exceeded")
        assert (failed.items_done, len(await bench.vectors(job.job_id))) == (8, 8)


async def test_a_host_that_stops_commits_what_it_computed(path: Path) -> None:
    lane = NoOpLane()
    async with job_bench(path, lane) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 24))).job
        await lane.begun()
    async with job_bench(path, NoOpLane(), generation=2) as bench:
        ended = await bench.ledger.job(job.job_id)
        assert (ended.state, error_of(ended)["code"]) == ("failed_transient", "module_restarted")
        assert ended.items_done == 8
        again = (await bench.submit(numbered("k", 24))).job
        assert (await bench.ended(again.job_id)).state == "done"
        assert sum(map(len, bench.lane.computed)) == 16


# --- the store ------------------------------------------------------------------------------------------------------


async def test_a_page_that_cannot_be_written_ends_the_job(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StoreFailure("the disk is full; free disk space there, then retry")

    async with job_bench(path, limits=SMALL_PAGES) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "commit_page", full)
            failed = await bench.ended((await bench.submit(numbered("k", 100))).job.job_id)
        assert (failed.state, failed.page_count, error_of(failed)["code"]) == ("failed_transient", 0, "store_failure")
        again = (await bench.submit(numbered("k", 100))).job
        assert (await bench.ended(again.job_id)).state == "done"


async def test_a_job_that_cannot_be_ended_is_ended_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise StoreFailure("the disk is full")

    async with job_bench(path) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "finish", full)
            patch.setattr(transactions, "fail", full)
            job = (await bench.submit(numbered("k", 9))).job
            with anyio.fail_after(30):
                while bench.dispatcher.held_up_by(job) is None:
                    await anyio.lowlevel.checkpoint()
        stuck = await bench.ledger.job(job.job_id)
        assert stuck.state == "running"
        waiting = job_status(stuck, bench.dispatcher.held_up_by(stuck))["waiting_for"]
        assert (waiting["code"], waiting["message"]) == ("store_failure", "the disk is full")
        await bench.dispatcher.settle()
        ended = await bench.ledger.job(job.job_id)
        assert ended.state == "done"
        assert "waiting_for" not in job_status(ended, bench.dispatcher.held_up_by(ended))
        await _agrees(bench)


async def test_every_job_closes_with_one_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lane = NoOpLane()
    lane.crash_on = {"bad-0": 99}
    with caplog.at_level(logging.INFO):
        async with job_bench(path, lane) as bench:
            jobs = [(await bench.submit(numbered(name, 9))).job for name in ("good", "bad")]
            for job in jobs:
                await bench.ended(job.job_id)
            await _agrees(bench)
    lines = [record.getMessage() for record in caplog.records if "closed as" in record.getMessage()]
    assert len(lines) == 2
    assert jobs[0].job_id in lines[0]
    assert "closed as done after" in lines[0]
    assert "9 of 9 items" in lines[0]
    assert "failed_transient (engine_crashed)" in lines[1]


async def _agrees(bench: JobBench) -> None:
    assert bench.ledger.counters.open == sum((await bench.ledger.open_by_state()).values())
