"""Whether a worker's memory stays where it is once every shape has been computed."""

from __future__ import annotations

import random

import numpy as np

from benchmarks.machine import resident_mib
from benchmarks.recorded_host import MODEL, RecordedHost
from benchmarks.result import Bar, Result

#: Growth over the measured batches that still counts as flat: the allocator's own movement.
MOST_GROWTH_MIB = 4.0
BATCHES = 1000
EVERY = 20
MAX_TOKENS = 512
#: Tokens that frame a text.
_SPECIAL = 2
_WORD = "stone"


def measure(host: RecordedHost, batches: int = BATCHES) -> Result:
    """Warm up with every bucket and row count, then fit a line through resident memory over mixed batches."""
    warm_up(host)
    pid = host.worker_pid()
    draw = random.Random("worker memory")
    at, seen = [0], [resident_mib(pid)]
    for number in range(1, batches + 1):
        host.client.embed_batch(MODEL, mixed_batch(draw))
        if number % EVERY == 0:
            at.append(number)
            seen.append(resident_mib(pid))
    slope = float(np.polyfit(at, seen, 1)[0])
    growth = slope * batches
    rows = [
        ("after warm-up", f"{seen[0]:.1f}"),
        ("highest", f"{max(seen):.1f}"),
        ("at the end", f"{seen[-1]:.1f}"),
        (f"slope, over {batches} batches", f"{growth:+.2f}"),
    ]
    figures = {
        "batches": batches,
        "resident_start_mib": seen[0],
        "resident_high_mib": max(seen),
        "resident_end_mib": seen[-1],
        "slope_kib_per_batch": slope * 1024,
        "growth_mib": growth,
    }
    bars = (Bar(f"worker growth over {batches} mixed batches", growth, MOST_GROWTH_MIB, "at most", " MiB"),)
    return Result("memory", f"{batches} mixed batches", ("worker resident", "MiB"), rows, figures, bars)


def warm_up(host: RecordedHost) -> None:
    """Batches whose rows make every row count at every bucket: 2n - 1 rows split into n, n/2, … 1."""
    for tokens in range(16, MAX_TOKENS + 1, 16):
        most = max(rows for rows in (1, 2, 4, 8, 16, 32, 64) if rows == 1 or rows * tokens <= 2048)
        for rows in (most, most - 1):
            if rows:
                host.client.embed_batch(MODEL, [text_of(tokens)] * rows)


def mixed_batch(draw: random.Random) -> list[str]:
    """Up to 16 texts of any length, short ones more often, as many tokens as an inline batch takes."""
    lengths = [min(int(draw.lognormvariate(3.5, 0.9)) + _SPECIAL + 1, MAX_TOKENS) for _ in range(draw.randint(1, 16))]
    return [text_of(tokens) for tokens in lengths]


def text_of(tokens: int) -> str:
    """A text of exactly ``tokens`` tokens."""
    return " ".join([_WORD] * (tokens - _SPECIAL))
