"""A job's texts are tokenised one stretch ahead of the engine, and no further."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from synapse_host.jobs.pages import Page
from synapse_host.jobs.spool import CHUNK_ITEMS
from synapse_host.store.job_tables import JobRow
from synapse_host.testing.job_bench import JobBench, job_bench, numbered
from synapse_host.testing.no_op_lane import CountingEncoder, NoOpLane
from synapse_host.tokenization.model_tokenizer import EncodedText

pytestmark = pytest.mark.anyio
PATIENCE_S = 60


class HeldEncoder(CountingEncoder):
    """Notes how many texts each call was given; call ``held`` (from 0) waits to be let go."""

    def __init__(self, held: int = -1) -> None:
        super().__init__()
        self.calls: list[int] = []
        self._held = held
        self.go_on = threading.Event()

    def encode(self, texts: Sequence[str]) -> list[EncodedText]:
        """The tokens of each text."""
        self.calls.append(len(texts))
        if len(self.calls) - 1 == self._held:
            assert self.go_on.wait(PATIENCE_S), "nobody let it go on"
        return super().encode(texts)

    async def called(self, times: int) -> None:
        """Wait until it was called so often."""
        with anyio.fail_after(PATIENCE_S):
            while len(self.calls) < times:
                await anyio.lowlevel.checkpoint()


@contextmanager
def let_go(encoder: HeldEncoder) -> Iterator[None]:
    """Let a held call go on whatever happens in the block: a thread cannot be stopped."""
    try:
        yield
    finally:
        encoder.go_on.set()


async def settled(bench: JobBench) -> None:
    """Let everything go on that can, threads and the store included."""
    for _ in range(5):
        await bench.ledger.newest(1)
        await anyio.wait_all_tasks_blocked()


async def test_the_next_stretch_is_tokenised_while_the_engine_runs_and_none_after_it(tmp_path: Path) -> None:
    lane = NoOpLane()
    lane.encoder = encoder = HeldEncoder()
    async with job_bench(tmp_path / "store.sqlite3", lane) as bench:
        lane.hold = anyio.Event()
        job = (await bench.submit(numbered("k", 6 * CHUNK_ITEMS))).job
        with anyio.fail_after(PATIENCE_S):
            await lane.entered.wait()
        await encoder.called(2)
        await settled(bench)
        # The first group is on the device: its stretch and the next are in memory, and no other.
        assert (lane.computed, encoder.calls) == ([], [CHUNK_ITEMS] * 2)
        lane.hold.set()
        assert (await bench.ended(job.job_id)).state == "done"
        assert encoder.calls == [CHUNK_ITEMS] * 6


async def test_groups_of_one_stretch_are_computed_while_the_next_is_tokenised(tmp_path: Path) -> None:
    lane = NoOpLane()
    lane.encoder = encoder = HeldEncoder(held=1)
    async with job_bench(tmp_path / "store.sqlite3", lane) as bench:
        with let_go(encoder):
            job = (await bench.submit(numbered("k", 2 * CHUNK_ITEMS))).job
            with anyio.fail_after(PATIENCE_S):
                # All of it but its last group, which may still grow.
                while len(lane.computed) < CHUNK_ITEMS // 8 - 1:
                    await anyio.lowlevel.checkpoint()
            await settled(bench)
            assert len(lane.computed) == CHUNK_ITEMS // 8 - 1
        assert (await bench.ended(job.job_id)).state == "done"
        assert sum(map(len, lane.computed)) == 2 * CHUNK_ITEMS


async def test_a_job_that_fails_while_its_next_stretch_is_tokenised_fails_with_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = NoOpLane()
    lane.encoder = encoder = HeldEncoder(held=1)
    async with job_bench(tmp_path / "store.sqlite3", lane) as bench:
        commit = bench.ledger.commit_page

        async def tokenised_meanwhile(job_pk: int, page: Page) -> JobRow:
            encoder.go_on.set()
            # The stretch is handed over while what was computed is committed.
            await settled(bench)
            return await commit(job_pk, page)

        monkeypatch.setattr(bench.ledger, "commit_page", tokenised_meanwhile)
        with let_go(encoder):
            lane.hold = anyio.Event()
            job = (await bench.submit(numbered("k", 2 * CHUNK_ITEMS))).job
            with anyio.fail_after(PATIENCE_S):
                await lane.entered.wait()
            await encoder.called(2)
            gate, lane.hold = lane.hold, anyio.Event()
            gate.set()
            with anyio.fail_after(PATIENCE_S):
                while not lane.computed:
                    await anyio.lowlevel.checkpoint()
            lane.crash_on = dict.fromkeys(numbered("k", 2 * CHUNK_ITEMS).item_ids, 99)
            lane.hold.set()
            failed = await bench.ended(job.job_id)
        assert failed.state == "failed_transient", failed.error_json
        assert '"engine_crashed"' in (failed.error_json or "")
        assert failed.items_done == 8
