"""A copy of the store's files, taken at any step of a transaction, opens and shows whole pages only."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from synapse_host.jobs.page_writer import PageLimits
from synapse_host.store import job_store
from synapse_host.store.database import Store
from synapse_host.store.upkeep import faults_of
from synapse_host.testing.crashes.job_crashes import Steps
from synapse_host.testing.job_bench import job_bench, numbered
from synapse_host.testing.no_op_lane import NoOpLane, named_vector

pytestmark = pytest.mark.anyio
ITEMS = 32


class Copying(Steps):
    """Copies the files before and after every statement of the writer, in the writer's own thread."""

    def __init__(self, folder: Path) -> None:
        super().__init__(report=-1)
        self.folder = folder
        self.names: list[str] = []

    def passed(self, when: str, statement: str) -> None:
        copy = self.folder.parent / f"copy-{len(self.names)}"
        shutil.copytree(self.folder, copy)
        self.names.append(f"{when} {statement}")


async def test_a_copy_taken_mid_write_opens_clean(tmp_path: Path) -> None:
    path = tmp_path / "store" / "synapse.sqlite3"
    Store.open(path).close()
    copying = Copying(path.parent)
    async with job_bench(path, limits=PageLimits(4500, 3600), on_open=copying.watch) as bench:
        job = (await bench.submit(numbered("k", ITEMS))).job
        assert (await bench.ended(job.job_id)).state == "done"
    assert {"before COMMIT", "after INSERT job_pages", "after INSERT job_items"} <= set(copying.names)
    shown = [await _shown(path.parent.parent / f"copy-{number}" / path.name) for number in range(len(copying.names))]
    assert shown == sorted(shown), "a later copy never shows less"
    assert {0, ITEMS} < set(shown)


async def _shown(path: Path) -> int:
    """How many items a host started on the copy shows; it then computes the others and no more."""
    assert faults_of(path) == []
    lane = NoOpLane()
    async with job_bench(path, lane, generation=2) as bench:
        jobs = bench.store.look(lambda session: job_store.newest_jobs(session, 9))
        shown = jobs[0].items_done if jobs else 0
        for job in jobs:
            rows = await bench.vectors(job.job_id)
            assert rows == {item: named_vector(item, 4) for item in rows}
            assert len(rows) == job.items_done
        done = await bench.ended((await bench.submit(numbered("k", ITEMS))).job.job_id)
        assert (done.state, sum(map(len, lane.computed))) == ("done", ITEMS - shown)
    return shown


async def test_reading_waits_for_no_writer(tmp_path: Path) -> None:
    """A reader beside a transaction under way sees what was before it, at once."""
    path = tmp_path / "synapse.sqlite3"
    async with job_bench(path) as bench:
        job = (await bench.ledger.admit(numbered("k", ITEMS))).job
        writing, go_on = anyio.Event(), anyio.Event()

        async def write() -> None:
            def work(session: object) -> None:
                anyio.from_thread.run_sync(writing.set)
                anyio.from_thread.run(go_on.wait)

            await bench.store.run(work)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            with anyio.fail_after(30):
                await writing.wait()
                assert (await bench.ledger.job(job.job_id)).state == "queued"
            go_on.set()
