"""A job of any number of items through the book, the spool and the pages, on a lane that computes nothing.

    python -m synapse_host.testing.job_load DIRECTORY ITEMS

Handing in is included: parts as the client library makes them, four ahead, each read out while it runs. Prints a
JSON object: items a second in all and of each tenth, peak resident memory, size of the store, and what a page takes to
read at the end.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio

from synapse_host.client.job_parts import JobPart, job_parts
from synapse_host.hookspecs import BatchPolicy
from synapse_host.jobs.page_cursor import PageCursor
from synapse_host.testing.job_bench import JobBench, job_bench, submission_of
from synapse_host.testing.no_op_lane import NoOpLane

AHEAD = 4
DIMS = 32
PAGE_READS = 200
PAGE_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one run; ``tenths`` are items a second."""

    items: int
    items_per_s: int
    tenths: list[int]
    peak_rss_mib: float
    store_mib: float
    page_p95_ms: float


def _items(count: int) -> Iterator[tuple[str, str]]:
    for number in range(count):
        yield f"item-{number}", f"{'word ' * (number % 5)}number {number}"


async def measure(path: Path, count: int) -> Load:
    """Embed ``count`` items and look at what that took."""
    async with job_bench(path, NoOpLane(DIMS, BatchPolicy(64, 1 << 20), plain=True)) as bench:
        marks, began, done = [], time.perf_counter(), 0
        handed: deque[str] = deque()
        last = ""
        for part in job_parts(_items(count)):
            handed.append(await _hand_in(bench, part))
            if len(handed) > AHEAD:
                last, done = await _take(bench, handed, done)
                marks.append((done, time.perf_counter() - began))
        while handed:
            last, done = await _take(bench, handed, done)
            marks.append((done, time.perf_counter() - began))
        assert done == count, f"{done} of {count} items came back"
        page_p95_ms = await _page_p95_ms(bench, last)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    return Load(
        items=count,
        items_per_s=round(count / marks[-1][1]),
        tenths=_tenths(marks, count),
        peak_rss_mib=round(peak_kib / 1024, 1),
        store_mib=round(size / (1 << 20), 1),
        page_p95_ms=page_p95_ms,
    )


async def _hand_in(bench: JobBench, part: JobPart) -> str:
    return (await bench.submit(submission_of(part.key("load"), part.ids, part.texts))).job.job_id


async def _take(bench: JobBench, handed: deque[str], done: int) -> tuple[str, int]:
    """Read the job handed in first until it has ended; its id, and how many items are done now."""
    job_id = handed.popleft()
    cursor: PageCursor | None = PageCursor()
    while cursor is not None:
        excerpt = await bench.ledger.excerpt(job_id, cursor, PAGE_BYTES)
        assert excerpt.job.state in ("queued", "running", "done"), excerpt.job.error_json
        done += len(excerpt.rows.vectors)
        cursor = excerpt.next_cursor
        if not excerpt.rows.vectors:
            await anyio.sleep(0.002)
    return job_id, done


async def _page_p95_ms(bench: JobBench, job_id: str) -> float:
    samples = []
    for _ in range(PAGE_READS):
        began = time.perf_counter()
        await bench.ledger.excerpt(job_id, PageCursor(), PAGE_BYTES)
        samples.append((time.perf_counter() - began) * 1000)
    return round(sorted(samples)[int(PAGE_READS * 0.95)], 2)


def _tenths(marks: list[tuple[int, float]], count: int) -> list[int]:
    """Items a second of each tenth of the work, from (items done, seconds) pairs."""
    rates = []
    before = (0, 0.0)
    for tenth in range(1, 11):
        at = next(mark for mark in marks if mark[0] >= count * tenth / 10)
        if at[0] > before[0]:
            rates.append(round((at[0] - before[0]) / (at[1] - before[1])))
        before = at
    return rates


def main() -> None:
    """Measure and print."""
    load = anyio.run(measure, Path(sys.argv[1]) / "synapse.sqlite3", int(sys.argv[2]))
    sys.stdout.write(json.dumps(asdict(load)) + "\n")


if __name__ == "__main__":
    main()
