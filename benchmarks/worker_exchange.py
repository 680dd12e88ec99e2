"""What a worker process costs by itself: one exchange with a worker that computes nothing, and bytes through it.

The host's own code asks and the worker's own code answers, with all checks of both; only the engine is left out. A
reply of vectors includes the worker's look at every number.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from rich.console import Console

from benchmarks.machine import this_machine
from benchmarks.result import Bar, Result, Spread, print_result
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.workers.fake_engine import load_request
from synapse_host.worker_protocol.messages import EmbedBatchRequest, Generate, Loaded, Message

#: The issue's bars.
MOST_P50_US = 150
LEAST_GB_PER_S = {16: 1.5, 1: 0.5}
WARM_UP, EXCHANGES, TRANSFERS = 500, 5000, 40
MIB = 1 << 20
#: Components of a vector as small models have them, and of one in the large batches.
SMALL_DIMS, WIDE_DIMS = 384, 16_384

Ask = Callable[[], Awaitable[object]]


def measure(*, held: bool) -> Result:
    """Start a worker and measure; latencies in microseconds, throughput of the raw frame in GB/s.

    ``held`` says whether the bars count: they are absolute, so they do not where others use the machine.
    """
    one, moved = anyio.run(_measure, EXCHANGES, TRANSFERS)
    return _result(one, moved, held=held)


async def _measure(exchanges: int, transfers: int) -> tuple[Spread, dict[str, Spread]]:
    with tempfile.TemporaryDirectory() as folder:
        async with anyio.create_task_group() as tasks:
            command = (sys.executable, "-m", "benchmarks.no_op_worker", "no-op")
            spec = WorkerSpec("no-op", "synapse-no-op", Path(folder) / "n.sock", command=command)
            worker = await Worker.start(spec, tasks)
            try:
                return await _measured(worker, Path(folder), exchanges, transfers)
            finally:
                with anyio.CancelScope(shield=True):
                    await worker.stop()


async def _measured(worker: Worker, folder: Path, exchanges: int, transfers: int) -> tuple[Spread, dict[str, Spread]]:
    small = await _load(worker, folder, "embed", SMALL_DIMS)
    wide = await _load(worker, folder, "embed", WIDE_DIMS)
    generates = await _load(worker, folder, "generate", SMALL_DIMS)
    one = Spread.of((await _times(_embedding(worker, small, 1), WARM_UP + exchanges))[WARM_UP:])
    moved: dict[str, Spread] = {}
    for size in LEAST_GB_PER_S:
        for way, ask in (
            ("reply", _embedding(worker, wide, size * MIB // (WIDE_DIMS * 4))),
            ("request", _prompt(worker, generates, size * MIB)),
        ):
            seconds = await _times(ask, 3 + transfers)
            moved[f"{size} MiB {way}"] = Spread.of(size * MIB / taken / 1e9 for taken in seconds[3:])
    return one, moved


async def _load(worker: Worker, folder: Path, operation: str, dims: int) -> str:
    reply, _ = await worker.request(load_request(folder, {"dims": dims}, operation=operation))
    assert isinstance(reply, Loaded)
    return reply.model_ref


def _embedding(worker: Worker, model_ref: str, rows: int) -> Ask:
    items = [{"id": str(row), "n_tokens": 1} for row in range(rows)]
    return _asking(worker, lambda: EmbedBatchRequest("e", model_ref, "mean", True, items), bytes(4 * rows))


def _prompt(worker: Worker, model_ref: str, size: int) -> Ask:
    return _asking(worker, lambda: Generate("g", model_ref, 1), bytes(size))


def _asking(worker: Worker, message: Callable[[], Message], raw: bytes) -> Ask:
    """Each exchange has a message of its own, as the host's have."""

    async def ask() -> object:
        return await worker.request(message(), raw)

    return ask


async def _times(ask: Ask, count: int) -> list[float]:
    """Seconds of each of ``count`` exchanges, one after the other."""
    samples = []
    for _ in range(count):
        started = time.perf_counter()
        await ask()
        samples.append(time.perf_counter() - started)
    return samples


def _result(one: Spread, moved: dict[str, Spread], *, held: bool) -> Result:
    p50, p99 = one.quantile(0.5) * 1e6, one.quantile(0.99) * 1e6
    rows = [("one item, no-op", f"{p50:.0f} µs", f"p99 {p99:.0f} µs")]
    rows += [(name, f"{spread.median:.2f} GB/s", spread.shown()) for name, spread in moved.items()]
    bars = [Bar("one exchange with a no-op worker, p50", p50, MOST_P50_US, "at most", " µs", held)]
    bars += [
        Bar(
            f"raw frame through a worker, {name}",
            spread.median,
            LEAST_GB_PER_S[int(name.split()[0])],
            "at least",
            " GB/s",
            held,
        )
        for name, spread in moved.items()
        if name.endswith("reply")
    ]
    figures = {"exchange_p50_us": p50, "exchange_p99_us": p99} | {
        f"{name.replace(' ', '_').lower()}_gb_per_s": spread.median for name, spread in moved.items()
    }
    about = "the process alone, with both sides' checks and without an engine"
    return Result("worker", about, ("what", "median", "range"), rows, figures, bars)


if __name__ == "__main__":
    outcome = measure(held=not this_machine().busy)
    print_result(Console(stderr=True), outcome)
    print(outcome.json_line())
