"""A job whose end cannot be written down says what it waits for, in every answer that shows its status."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from synapse_host.certification.alias_table import AliasTable
from synapse_host.cli.job_rendering import show_jobs, show_status
from synapse_host.errors import StoreFailure
from synapse_host.jobs import transactions
from synapse_host.operations.durable_jobs import EmbedResultParams, JobService
from synapse_host.operations.registry import RequestContext
from synapse_host.testing.job_bench import JobBench, job_bench, numbered

pytestmark = pytest.mark.anyio


def full(*_: Any) -> Any:
    raise StoreFailure("the disk is full; free disk space there, then retry")


async def stuck_job(bench: JobBench, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that neither could be finished nor failed, though the store can be written again."""
    with monkeypatch.context() as patch:
        patch.setattr(transactions, "finish", full)
        patch.setattr(transactions, "fail", full)
        job = (await bench.submit(numbered("k", 9))).job
        with anyio.fail_after(10):
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
        assert (ended["state"], ended["error"]["code"]) == ("failed_transient", "store_failure")
        assert "waiting_for" not in ended
