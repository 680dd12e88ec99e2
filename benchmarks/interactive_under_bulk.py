"""A search box beside an index job: what queries wait while the job runs, and what they cost it.

Alone it runs as ``python -m benchmarks.interactive_under_bulk [ITEMS]``. Without ITEMS the job is as large as this
machine computes in ``JOB_S`` seconds, and all of it takes some four minutes; 50,000 are the figure to hold. The job's
speed alone is that of two halves, one before and one after the job beside queries, so that a machine that drifts does
not decide.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.corpus import TEXTS, docstrings, salted, short_queries
from benchmarks.machine import this_machine
from benchmarks.recorded_host import MODEL, RecordedHost, recorded_host
from benchmarks.result import Bar, Result, Spread, print_result
from benchmarks.side_process import SideProcess
from synapse_host.client.blocking_client import Client
from synapse_host.errors import DeadlineExceeded

#: The figures to hold: items of the job, seconds between two queries, and the bars.
ITEMS, QUERY_EVERY_S = 50_000, 0.5
OF_IDLE, LEAST_SHARE = 1.5, 0.85
IDLE_QUERIES, WARM_UP = 60, 6
P95 = 0.95
#: Seconds the job of a short run takes alone, at the speed of the warm-up.
JOB_S = 80.0
#: A query that is refused has waited for all of its time, as far as whoever asked is concerned.
REFUSED_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class Job:
    """One durable job's texts: so many, salted with ``seed`` so that no page of an earlier one answers for it."""

    seed: str
    items: int


def make_job_runner(socket: Path) -> Callable[[Job], float]:
    """What runs a job from submission to its last vector, in a process of its own; seconds it took."""
    texts = docstrings()

    def run(job: Job) -> float:
        blocks = (salted(texts, f"{job.seed}-{block}") for block in range(-(-job.items // TEXTS)))
        wanted = [text for block in blocks for text in block][: job.items]
        with Client.connect(socket) as client:
            started = time.perf_counter()
            client.embed_many(MODEL, wanted, request_key=job.seed)
            return time.perf_counter() - started

    return run


def measure(host: RecordedHost, items: int | None = None, *, held: bool) -> Result:
    """Queries alone, half of the job alone, all of it beside queries, and the other half alone."""
    mark = f"under-bulk-{time.time_ns()}"
    _say(f"{WARM_UP + IDLE_QUERIES} queries alone, two a second")
    idle = Spread.of(_queries(host.client, f"{mark}-idle", lambda done: done >= WARM_UP + IDLE_QUERIES)[WARM_UP:])
    with SideProcess(make_job_runner, host.socket) as run_job:
        run_job(Job(f"{mark}-cold", TEXTS // 4))
        pace = TEXTS / run_job(Job(f"{mark}-warm", TEXTS))
        items = items or max(TEXTS, round(pace * JOB_S))
        host.take_batches()
        _say(f"{pace:.0f} texts a second; half of a job of {items} alone")
        alone_s = run_job(Job(f"{mark}-before", items // 2))
        _say(f"{alone_s:.0f} s; the job beside queries")
        groups = Spread.of(batch.seconds * 1e3 for batch in host.take_batches() if len(batch.rows) > 1)
        busy, together_s = _together(host, run_job, Job(f"{mark}-together", items))
        _say(f"{together_s:.0f} s; the other half alone")
        alone_s += run_job(Job(f"{mark}-after", items - items // 2))
    return _result(items, idle, busy, groups, alone_s, together_s, held=held)


def _say(what: str) -> None:
    print(f"interactive: {what}", file=sys.stderr, flush=True)


def _together(host: RecordedHost, run_job: SideProcess[Job, float], job: Job) -> tuple[Spread, float]:
    took: list[float] = []
    # A daemon: where a query fails, nobody waits for the job.
    worker = threading.Thread(target=lambda: took.append(run_job(job)), daemon=True)
    worker.start()
    # The first queries may come before the job's first group.
    waits = _queries(host.client, f"{job.seed}-queries", lambda _: not worker.is_alive())[WARM_UP // 3 :]
    worker.join()
    if not took:
        raise RuntimeError("the job failed; its process has printed why")
    return Spread.of(waits), took[0]


def _queries(client: Client, seed: str, enough: Callable[[int], bool]) -> list[float]:
    """Milliseconds of single queries, two a second, until there are enough."""
    waits: list[float] = []
    texts = iter(short_queries(100_000, seed))
    due = time.perf_counter()
    while not enough(len(waits)):
        time.sleep(max(0.0, due - time.perf_counter()))
        # Never a burst to catch up with: a person who waited does not ask twice.
        due = max(due + QUERY_EVERY_S, time.perf_counter())
        started = time.perf_counter()
        try:
            client.embed_query(MODEL, next(texts))
            waits.append((time.perf_counter() - started) * 1e3)
        except DeadlineExceeded as refusal:
            _say(f"a query was refused: {refusal.message}")
            waits.append(REFUSED_MS)
    return waits


def _result(
    items: int, idle: Spread, busy: Spread, groups: Spread, alone_s: float, together_s: float, *, held: bool
) -> Result:
    group_ms, share = groups.quantile(P95), alone_s / together_s
    most = group_ms + OF_IDLE * idle.quantile(P95)
    rows = [
        (name, f"{spread.median:.2f}", f"{spread.quantile(P95):.2f}", f"{spread.samples[-1]:.2f}")
        for name, spread in (("query alone", idle), ("bulk group", groups), ("query beside the job", busy))
    ]
    figures = {
        "items": items,
        "queries": len(busy.samples),
        "queries_refused": sum(wait == REFUSED_MS for wait in busy.samples),
        "idle_p95_ms": idle.quantile(P95),
        "busy_p50_ms": busy.median,
        "busy_p95_ms": busy.quantile(P95),
        "group_p95_ms": group_ms,
        "job_alone_items_s": items / alone_s,
        "job_together_items_s": items / together_s,
        "job_share": share,
    }
    bars = (
        Bar("query beside a job, p95", busy.quantile(P95), most, "at most", " ms", held),
        Bar("job beside two queries a second, share of its speed alone", share, LEAST_SHARE, "at least", "", held),
    )
    about = f"{len(busy.samples)} queries, two a second, beside a job of {items} texts ({items / alone_s:.0f}/s alone)"
    return Result("interactive", about, ("milliseconds", "p50", "p95", "most"), rows, figures, bars)


def main() -> int:
    """Measure alone; 1 where a bar was missed."""
    items = int(sys.argv[1]) if len(sys.argv) > 1 else None
    with recorded_host() as host:
        result = measure(host, items, held=not this_machine().busy)
    print_result(Console(stderr=True), result)
    print(result.json_line())
    return int(any(bar.missed for bar in result.bars))


if __name__ == "__main__":
    sys.exit(main())
