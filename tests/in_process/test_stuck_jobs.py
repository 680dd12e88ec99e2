"""A job whose end or beginning cannot be written down says what it waits for, in every answer that shows its status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.certification.alias_table import AliasTable
from synapse_host.cli.job_rendering import show_jobs, show_status
from synapse_host.errors import ProbeRequired, StoreFailure
from synapse_host.jobs import transactions
from synapse_host.jobs.job_reader import job_status
from synapse_host.operations.durable_jobs import EmbedResultParams, JobService
from synapse_host.operations.registry import RequestContext
from synapse_host.testing.job_bench import JobBench, job_bench, numbered

pytestmark = pytest.mark.anyio


def full(*_: Any) -> Any:
    raise StoreFailure("the disk is full; free disk space there, then retry")


async def stuck_job(bench: JobBench, monkeypatch: pytest.MonkeyPatch, key: str = "k") -> str:
    """A job that neither could be finished nor failed, though the store can be written again."""
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "finish", full)
        patch.setattr(transactions, "fail", full)
        job = (await bench.submit(numbered(key, 9))).job
        with anyio.fail_after(30):
            while bench.dispatcher.held_up_by(job) is None:
                await anyio.lowlevel.checkpoint()
    return job.job_id


async def test_every_status_shows_it_until_the_job_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with job_bench(tmp_path / "store.sqlite3") as bench:
        service = JobService(
            bench.ledger,
            bench.dispatcher.enqueue,
            bench.dispatcher.cancel,
            bench.dispatcher.held_up_by,
            AliasTable(),
            1 << 20,
            1 << 24,
        )
        job_id = await stuck_job(bench, monkeypatch)
        status = await service.status_of(job_id)
        assert status is not None
        (listed,) = await service.recent()
        page = (await service.result(EmbedResultParams(job_id=job_id), RequestContext(0.0))).payload
        for shown in (status, listed, page):
            assert shown["state"] == "running"
            assert shown["waiting_for"]["code"] == "store_failure"
        show_jobs({"jobs_recent": [listed]})
        assert "waits for: store_failure" in capfd.readouterr().out
        show_status(status)
        assert "store_failure: the disk is full; free disk space there" in capfd.readouterr().out

        await bench.dispatcher.settle()
        ended = await service.status_of(job_id)
        assert ended is not None
        # It had all its vectors, which is the end it had come to.
        assert (ended["state"], ended["items_done"]) == ("done", 9)
        assert not {"waiting_for", "error"} & set(ended)


async def test_a_job_that_cannot_be_begun_waits_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000_000
    async with job_bench(tmp_path / "store.sqlite3", now_ms=lambda: now) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "claim", full)
            waiting = [(await bench.submit(numbered(key, 9))).job for key in ("first", "second")]
            with anyio.fail_after(30):
                while bench.dispatcher.held_up_by(waiting[0]) is None:
                    await anyio.lowlevel.checkpoint()
            await bench.dispatcher.settle()
            await anyio.wait_all_tasks_blocked()
            shown = [
                job_status(await bench.ledger.job(job.job_id), bench.dispatcher.held_up_by(job)) for job in waiting
            ]
            assert [status["state"] for status in shown] == ["queued", "queued"]
            assert shown[0]["waiting_for"]["code"] == "store_failure"
            assert "free disk space" in shown[0]["waiting_for"]["message"]
            assert "waiting_for" not in shown[1], "it waits for its turn"
        await bench.dispatcher.settle()
        for job in waiting:
            ended = await bench.ended(job.job_id)
            assert (ended.state, bench.dispatcher.held_up_by(ended)) == ("done", None)
        assert [group[0].partition("-")[0] for group in bench.lane.computed[::2]] == ["first", "second"]
        # Its time to run goes on meanwhile.
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "claim", full)
            late = (await bench.submit(numbered("late", 9, deadline_ms=50))).job
            with anyio.fail_after(30):
                while bench.dispatcher.held_up_by(late) is None:
                    await anyio.lowlevel.checkpoint()
            now += 50
        await bench.dispatcher.settle()
        assert '"deadline_exceeded"' in ((await bench.ended(late.job_id)).error_json or "")


@pytest.mark.parametrize("written", [True, False])
async def test_a_job_that_cannot_be_begun_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    async with job_bench(tmp_path / "store.sqlite3") as bench:
        with monkeypatch.context() as patch:
            patch.setattr(transactions, "claim", full)
            if not written:
                patch.setattr(transactions, "cancel", full)
            first, behind = [(await bench.submit(numbered(key, 9))).job for key in ("first", "behind")]
            with anyio.fail_after(30):
                while bench.dispatcher.held_up_by(first) is None:
                    await anyio.lowlevel.checkpoint()
                ended = await bench.dispatcher.cancel(first.job_id)
            assert ended.state == ("cancelled" if written else "queued")
            waits = job_status(ended, bench.dispatcher.held_up_by(ended)).get("waiting_for", {})
            assert waits.get("details", {}).get("ends_as") == (None if written else "cancelled")
        await bench.dispatcher.settle()
        assert (await bench.ended(first.job_id)).state == "cancelled"
        assert (await bench.ended(behind.job_id)).state == "done"
        assert {group[0].partition("-")[0] for group in bench.lane.computed} == {"behind"}


async def test_the_end_it_had_come_to_is_the_one_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with job_bench(tmp_path / "store.sqlite3") as bench:
        bench.lane.refusal = ProbeRequired("no longer certified")
        failing = await bench.ledger.job(await stuck_job(bench, monkeypatch))
        assert (await bench.dispatcher.cancel(failing.job_id)).state == "running"
        bench.lane.refusal = None
        finished = (await bench.ledger.job(await stuck_job(bench, monkeypatch, "l"))).job_id
        await bench.dispatcher.cancel(finished)
        await bench.dispatcher.settle()
        assert (await bench.ended(failing.job_id)).state == "cancelled", "nobody is to hand it in again"
        assert (await bench.ended(finished)).state == "done", "of two ends the first wins"
        bench.lane.refusal = ProbeRequired("no longer certified")
        failed = await stuck_job(bench, monkeypatch, "m")
        await bench.dispatcher.settle()
        ended = await bench.ended(failed)
        assert (ended.state, "no longer certified" in (ended.error_json or "")) == ("failed_permanent", True)
