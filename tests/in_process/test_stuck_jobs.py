"""A job whose end cannot be written down says what it waits for, in every answer that shows its status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.certification.alias_table import AliasTable
from synapse_host.cli.job_rendering import show_jobs, show_status
from synapse_host.errors import ProbeRequired, StoreFailure
from synapse_host.jobs import transactions
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
