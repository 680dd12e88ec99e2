"""Kills a host's durable jobs at named statements of the store, starts them again and looks at what is left.

    python -m synapse_host.testing.crashes.job_crashes DIRECTORY TIMES [all]

A first life tells every step: before and after each kind of statement of each operation. Then each is died at
``TIMES`` times, spread over where it occurs; without ``all`` only after statements that write, in the operations of
``OFTEN``, and around a commit. The last line printed is a JSON object: deaths by operation and step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from synapse_host.errors import EngineCrashed
from synapse_host.jobs.clocks import ClockLengths
from synapse_host.jobs.page_writer import PageLimits
from synapse_host.store import job_store
from synapse_host.store.database import Store
from synapse_host.store.job_tables import JobRow, JobWorkRow
from synapse_host.store.upkeep import faults_of
from synapse_host.testing.job_bench import JobBench, job_bench, numbered
from synapse_host.testing.no_op_lane import NoOpLane, named_vector

#: Pages of two groups, and clocks that the sweep of the last operation runs out.
LIMITS = PageLimits(bytes=4500, seconds=3600)
LENGTHS = ClockLengths(execution_ms=10_000, retention_ms=1_000, resume_ms=1_000)
ITEMS = 40
START_MS = 1_000_000
_NAMED = re.compile(r"\s*(\w+)(?:.*?\b(?:INTO|FROM|UPDATE)\s+(\w+))?", re.DOTALL | re.IGNORECASE)


class Steps:
    """Names the statements of this process and kills it at the ``occurrence``-th of one; tells the parent of each."""

    def __init__(self, report: int, die_at: str | None = None, occurrence: int = 0) -> None:
        self.operation = ""
        self._report = report
        self._die_at = die_at
        self._left = occurrence

    def tell(self, kind: str, what: str) -> None:
        """One line for the parent."""
        os.write(self._report, f"{kind} {what}\n".encode())

    def passed(self, when: str, statement: str) -> None:
        """A statement is about to be carried out, or was."""
        name = f"{self.operation}: {when} {statement}"
        if self._die_at is None:
            self.tell("step", name)
        elif name == self._die_at:
            self._left -= 1
            if self._left < 0:
                self.tell("died", name)
                os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, store: Store) -> None:
        """Make every statement of the store's writer a step."""
        dialect = store._engine.dialect

        def watched(call: Callable[..., Any], name_of: Callable[..., str]) -> Callable[..., Any]:
            def stepped(*arguments: Any, **options: Any) -> Any:
                name = name_of(*arguments)
                self.passed("before", name)
                result = call(*arguments, **options)
                self.passed("after", name)
                return result

            return stepped

        for method in ("do_execute", "do_executemany"):
            call = getattr(dialect, method)
            setattr(dialect, method, watched(call, lambda cursor, statement, *_: statement_name(statement)))
        setattr(dialect, "do_commit", watched(dialect.do_commit, lambda *_: "COMMIT"))  # noqa: B010 - an instance's


def statement_name(statement: str) -> str:
    """Its verb and table, as ``INSERT job_pages``."""
    matched = _NAMED.match(re.sub(r"^\s*UPDATE\b", "UPDATE x UPDATE", statement, flags=re.IGNORECASE))
    assert matched is not None, statement
    return f"{matched[1].upper()} {matched[2] or ''}".strip()


class WatchedLane(NoOpLane):
    """Refuses to compute an item that stands in a committed page."""

    store: Store

    async def embed(self, rows: Sequence[Sequence[int]], item_ids: Sequence[str]) -> tuple[int, bytes]:
        """Vectors, once it is sure that nobody has them."""
        again = self.store.look(lambda session: _visible(session, item_ids[0].rpartition("-")[0])) & set(item_ids)
        assert not again, f"computed again although their page is visible: {sorted(again)}"
        return await super().embed(rows, item_ids)


def _visible(session: Any, key: str) -> set[str]:
    """Ids of the items of a key that stand in pages."""
    works = session.connection().exec_driver_sql("SELECT work_pk FROM job_works WHERE request_key = ?", (key,)).all()
    return {f"{key}-{ordinal}" for (work_pk,) in works for ordinal in job_store.checkpointed(session, work_pk)}


# --- a life --------------------------------------------------------------------------------------------------------


class _Life:
    """One process on the store, with a clock that is moved by hand."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.now_ms = START_MS
        self.lane = WatchedLane()

    async def run(self, path: Path) -> None:
        bench = job_bench(
            path, self.lane, generation=2, limits=LIMITS, lengths=LENGTHS, now_ms=lambda: self.now_ms,
            on_open=self._opened,
        )  # fmt: skip
        self.steps.operation = "boot"
        async with bench as running:
            self.steps.tell("done", "boot")
            for name, operation in _WORK:
                self.steps.operation = name
                await operation(self, running)
                self.steps.tell("done", name)
            self.steps.operation = "stop"

    def _opened(self, store: Store) -> None:
        self.lane.store = store
        self.steps.watch(store)


async def _admit(life: _Life, bench: JobBench) -> None:
    await bench.ledger.admit(numbered("admitted", ITEMS))


async def _run(life: _Life, bench: JobBench) -> None:
    done = await bench.ended((await bench.submit(numbered("run", ITEMS))).job.job_id)
    assert done.state == "done", done.error_json


async def _fail(life: _Life, bench: JobBench) -> None:
    life.lane.crash_on = {"failed-7": 99}
    failed = await bench.ended((await bench.submit(numbered("failed", ITEMS))).job.job_id)
    assert failed.state == "failed_transient"
    life.lane.crash_on = {}


async def _again(life: _Life, bench: JobBench) -> None:
    done = await bench.ended((await bench.submit(numbered("failed", ITEMS))).job.job_id)
    assert done.state == "done", done.error_json


async def _left(life: _Life, bench: JobBench) -> None:
    """The job an earlier host left half done."""
    done = await bench.ended((await bench.submit(numbered("left", ITEMS))).job.job_id)
    assert done.state == "done", done.error_json


async def _pause(life: _Life, bench: JobBench) -> None:
    job = (await bench.ledger.admit(numbered("paused", ITEMS))).job
    await bench.ledger.pause(_key(job), "handle")


async def _resume(life: _Life, bench: JobBench) -> None:
    again = await bench.submit(numbered("paused", ITEMS))
    assert again.resumed
    assert (await bench.ended(again.job.job_id)).state == "done"


async def _cancel(life: _Life, bench: JobBench) -> None:
    """One that is carried out, with a group computed and another on the device, and one behind it."""
    lane = life.lane
    lane.hold, lane.entered = anyio.Event(), anyio.Event()
    running, waiting = [(await bench.submit(numbered(name, ITEMS))).job for name in ("unwanted", "behind")]
    await lane.entered.wait()
    gate, lane.hold = lane.hold, anyio.Event()
    gate.set()
    while not any(item.startswith("unwanted") for group in lane.computed for item in group):
        await anyio.lowlevel.checkpoint()
    for job in (waiting, running):
        assert (await bench.dispatcher.cancel(job.job_id)).state == "cancelled"
    lane.hold = None


async def _sweep(life: _Life, bench: JobBench) -> None:
    late = (await bench.ledger.admit(numbered("late", ITEMS, deadline_ms=5))).job
    life.now_ms += 5_000
    await bench.dispatcher.settle()
    assert (await bench.ledger.job(late.job_id)).state == "failed_transient"


_WORK: Sequence[tuple[str, Callable[[_Life, JobBench], Awaitable[None]]]] = (
    ("admit", _admit),
    ("run", _run),
    ("fail", _fail),
    ("again", _again),
    ("left", _left),
    ("pause", _pause),
    ("resume", _resume),
    ("cancel", _cancel),
    ("sweep", _sweep),
)
#: Operations that between them have every kind of transaction.
OFTEN = ("boot", "run", "sweep")
KEYS = ("admitted", "run", "failed", "left", "paused", "unwanted", "behind", "late")


def one_life(path: Path, die_at: str | None = None, occurrence: int = 0) -> list[tuple[str, str]]:
    """Fork a child that lives until it dies at a step, or to its end; what it told, in order.

    Raises ``AssertionError`` where it neither died there nor came to its end.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            anyio.run(_Life(Steps(writing, die_at, occurrence)).run, path)
            os._exit(0)
        except BaseException as fault:
            os.write(2, f"{die_at}: {fault!r}\n".encode())
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        told = [line.rstrip("\n").partition(" ") for line in lines]
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"{die_at} #{occurrence}: failed instead of dying"
    return [(kind, what) for kind, _, what in told]


# --- what is left ---------------------------------------------------------------------------------------------------


def leave_a_job(path: Path) -> None:
    """A store on which a host of generation 1 has died in the middle of a job."""

    async def live() -> None:
        lane = NoOpLane()
        async with job_bench(path, lane, limits=LIMITS, lengths=LENGTHS, now_ms=lambda: START_MS) as bench:
            lane.crash_on = {"left-3": 1}
            job = (await bench.ledger.admit(numbered("left", ITEMS))).job
            claimed = await bench.ledger.claim(_key(job))
            assert claimed is not None
            bench.dispatcher.enqueue(job)
            with suppress(EngineCrashed):
                await _pages(bench, job, 2)

    anyio.run(live)


async def _pages(bench: JobBench, job: JobRow, count: int) -> None:
    from synapse_host.jobs.pages import PageBuilder
    from synapse_host.testing.no_op_lane import CountingEncoder

    submission = numbered("left", ITEMS)
    for page in range(count):
        builder = PageBuilder(4)
        places = list(range(page * 5, page * 5 + 5))
        texts = [submission.texts[place] for place in places]
        ids = [submission.item_ids[place] for place in places]
        vectors = b"".join(named_vector(item, 4) for item in ids)
        builder.add(places, ids, CountingEncoder().encode(texts), vectors)
        await bench.ledger.commit_page(_key(job), builder.page())


def check(path: Path, told: Sequence[tuple[str, str]]) -> None:
    """Start again on what is left, and hold it against all that must be true of it."""
    assert faults_of(path) == []
    finished = {what for kind, what in told if kind == "done"}

    async def look() -> None:
        lane = WatchedLane()

        def opened(store: Store) -> None:
            lane.store = store

        bench = job_bench(
            path, lane, generation=3, limits=LIMITS, lengths=LENGTHS, now_ms=lambda: START_MS + 500, on_open=opened
        )
        async with bench as after:
            assert await after.ledger.open_by_state() == {}, "a job is still open after the boot"
            assert after.ledger.counters.open == 0
            before = after.store.look(_works)
            for job in after.store.look(lambda session: job_store.newest_jobs(session, 100)):
                await _check_readable(after, job)
            if "run" in finished and "sweep" not in finished and "sweep" not in {w.split(":")[0] for _, w in told}:
                assert before.get("run") == ITEMS, "a job that was done has lost rows"
            for key in KEYS:
                done = await after.ended((await after.submit(numbered(key, ITEMS))).job.job_id)
                assert (done.state, done.items_done) == ("done", ITEMS), f"{key}: {done.error_json}"
                assert len(await after.vectors(done.job_id)) == ITEMS
            computed = Counter(item.rpartition("-")[0] for group in lane.computed for item in group)
            for key in KEYS:
                assert computed[key] == ITEMS - before.get(key, 0), f"{key} was not continued but computed anew"

    anyio.run(look)
    assert faults_of(path) == []


async def _check_readable(after: JobBench, job: JobRow) -> None:
    rows = await after.vectors(job.job_id)
    assert len(rows) == job.items_done, f"{job.job_id} shows {job.items_done} rows and {len(rows)} can be read"
    assert rows == {item: named_vector(item, 4) for item in rows}


def _works(session: Any) -> dict[str, int]:
    """Key -> items committed."""
    from sqlmodel import select

    return {work.request_key: work.items_done for work in session.exec(select(JobWorkRow)).all()}


def _key(job: JobRow) -> int:
    assert job.job_pk is not None
    return job.job_pk


def wanted(name: str) -> bool:
    """Whether a step is one of those that are died at in every run of the tests."""
    operation, _, step = name.partition(": ")
    when, statement, *_ = step.split()
    writes = statement in ("INSERT", "UPDATE", "DELETE")
    return operation in OFTEN and (statement == "COMMIT" or (writes and when == "after"))


def main(folder: Path, times: int, *, every: bool) -> None:
    """Die at every kind of step ``times`` times."""
    origin = folder / "origin"
    leave_a_job(origin / "synapse.sqlite3")

    def fresh() -> Path:
        shutil.rmtree(folder / "life", ignore_errors=True)
        shutil.copytree(origin, folder / "life")
        return folder / "life" / "synapse.sqlite3"

    whole = one_life(path := fresh())
    check(path, whole)
    occurrences = Counter(what for kind, what in whole if kind == "step")
    deaths: Counter[str] = Counter()
    for name, count in occurrences.items():
        if not every and not wanted(name):
            continue
        for number in range(times):
            told = one_life(path := fresh(), name, number * count // times)
            # The order of two threads' statements may differ from the first life's.
            deaths[name] += any(kind == "died" for kind, _ in told)
            check(path, told)
    sys.stdout.write(json.dumps(deaths) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), every=sys.argv[3:] == ["all"])
