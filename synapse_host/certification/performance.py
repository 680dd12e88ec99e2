"""How fast a loaded lane is, measured through its own queue and worker."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from synapse_host.certification.lane_rows import lane_scores, lane_vectors
from synapse_host.certification.step_count import Count, counter, uncounted
from synapse_host.lanes.lane import Lane

#: Batches of at most this many tokens are timed until both minima below are reached (original facts 2.4).
BATCH_TOKENS = 1024
MIN_TOKENS = 4096
MIN_BATCHES = 3
SINGLE_SAMPLES = 20


#: A row of about this many tokens stands for a short query in the latency figure.
SHORT_ROW = 12


async def speed_of(lane: Lane, rows: Sequence[Sequence[int]], count: Count = uncounted) -> tuple[float, float]:
    """Real tokens per second over ``rows`` in batches, and median milliseconds of one short row.

    ``count`` is told of tokens, as many as are asked for.
    """
    short = min(rows, key=lambda row: abs(len(row) - SHORT_ROW))
    done = counter(count, MIN_TOKENS + SINGLE_SAMPLES * len(short))
    return await throughput_tok_s(lane, rows, done), await single_item_p50_ms(lane, short, done)


def _untold(tokens: int) -> None:
    """Nobody asks."""


async def throughput_tok_s(lane: Lane, rows: Sequence[Sequence[int]], told: Callable[[int], None] = _untold) -> float:
    """Real tokens per second over batches of ``rows``, repeated until enough was measured."""
    batches = _batches(sorted(rows, key=len))
    tokens = done = 0
    began = time.perf_counter()
    while tokens < MIN_TOKENS or done < MIN_BATCHES:
        batch = batches[done % len(batches)]
        await _compute(lane, batch)
        tokens += sum(map(len, batch))
        done += 1
        told(sum(map(len, batch)))
    return tokens / (time.perf_counter() - began)


async def single_item_p50_ms(lane: Lane, row: Sequence[int], told: Callable[[int], None] = _untold) -> float:
    """Median milliseconds of one short row."""
    samples = []
    for _ in range(SINGLE_SAMPLES):
        began = time.perf_counter()
        await _compute(lane, [row])
        samples.append((time.perf_counter() - began) * 1000)
        told(len(row))
    return statistics.median(samples)


async def _compute(lane: Lane, rows: Sequence[Sequence[int]]) -> None:
    if lane.model.task == "rerank":
        await lane_scores(lane, rows)
    else:
        await lane_vectors(lane, rows)


def _batches(rows: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = [[]]
    held = 0
    for row in rows:
        if batches[-1] and held + len(row) > BATCH_TOKENS:
            batches.append([])
            held = 0
        batches[-1].append(row)
        held += len(row)
    return batches
