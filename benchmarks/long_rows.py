"""Memory and silence of long rows on the cpu lane, at the shapes of gte-modernbert-base and Qwen3-Embedding-0.6B.

    python -m benchmarks.long_rows [gte qwen3] [--report-only] [--tokens 1024 2048 4096 8192]

Every length runs in a process of its own that loads the model and embeds one row: its highest resident memory, the
seconds the row took, and the longest time between two reports of progress, the start and the end among them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np
from rich.console import Console

from benchmarks.machine import this_machine
from benchmarks.random_checkpoints import SHAPES, write_checkpoint
from benchmarks.result import Bar, Result, print_result

TOKENS = (1024, 2048, 4096, 8192)
#: GiB a row of 8,192 tokens may take, everything included (bars of this project).
MOST_GIB: Mapping[str, float] = MappingProxyType({"gte": 3.0, "qwen3": 4.5})
POOLINGS: Mapping[str, str] = MappingProxyType({"gte": "cls", "qwen3": "last"})
#: Seconds between two reports at most; a worker is killed after 120.
MOST_SILENT_S = 30.0
#: Growth is linear where a further token of the longest step takes no more than so many times one of a step before;
#: quadratic growth would double it.
MOST_PER_TOKEN = 1.25
#: Highest resident memory comes from the system, in KiB.
CHILD = """
import json, resource, sys, time
from pathlib import Path
import numpy as np
from synapse_host.testing.engine_runs import batch_of, loaded_model, ignore_progress
from synapse_owned_cpu import plugin
folder, pooling, tokens, vocab = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
reports = []
def progress(completed, phase, token_ids=()):
    reports.append(time.perf_counter())
with loaded_model(plugin, folder, dtype=plugin.synapse_describe().dtypes[0], max_tokens=8192) as model:
    loaded = peak()
    row = np.random.default_rng(tokens).integers(4, vocab, tokens).astype(np.int32)
    began = time.perf_counter()
    vector = plugin.synapse_embed(model, batch_of([row], pooling), progress)
    ended = time.perf_counter()
marks = [began, *reports, ended]
silent = max(b - a for a, b in zip(marks, marks[1:]))
norm = float(np.linalg.norm(vector))
print(json.dumps({"loaded": loaded, "peak": peak(), "seconds": ended - began, "silent": silent,
                  "reports": len(reports), "norm": norm}))
"""


@dataclass(frozen=True, slots=True)
class LongRow:
    """One row: GiB after loading and at most, seconds it took, and the longest silence."""

    tokens: int
    loaded: float
    peak: float
    seconds: float
    silent: float
    reports: int
    norm: float


def measure(name: str, lengths: Sequence[int]) -> Result:
    """Rows of every length through one shape; raises ``CalledProcessError`` where a process fails."""
    with _checkpoint(name) as directory:
        rows = [_row(name, directory, tokens) for tokens in lengths]
    # KiB that each further token takes, from one length to the next: linear growth keeps it level.
    added = [(b.peak - a.peak) * 2**20 / (b.tokens - a.tokens) for a, b in pairwise(rows)]
    slope = float(np.polyfit([row.tokens for row in rows], [row.peak for row in rows], 1)[0]) if len(rows) > 1 else 0.0
    longest, silent = rows[-1], max(row.silent for row in rows)
    lines = [
        (
            f"{row.tokens:,}",
            f"{row.peak:.2f}",
            f"{row.peak - row.loaded:.2f}",
            kib,
            f"{row.seconds:.1f}",
            f"{row.silent:.1f}",
            str(row.reports),
        )
        for row, kib in zip(rows, ["", *(f"{kib:.0f}" for kib in added)], strict=True)
    ]
    figures: dict[str, float | int] = {"gib_per_1k_tokens": slope * 1024, "loaded_gib": longest.loaded}
    for row in rows:
        figures |= {
            f"peak_gib_{row.tokens}": row.peak,
            f"seconds_{row.tokens}": row.seconds,
            f"silent_{row.tokens}": row.silent,
        }
    bars = [
        Bar(f"peak memory at {longest.tokens:,} tokens", longest.peak, MOST_GIB[name], "at most", " GiB"),
        Bar("longest silence between reports", silent, MOST_SILENT_S, "at most", " s"),
        Bar("departure of a vector's length from 1", max(abs(row.norm - 1) for row in rows), 1e-3, "at most"),
    ]
    if len(added) > 1:
        growth = added[-1] / max(added[:-1])
        bars.append(Bar("KiB of a further token, last step over the most before", growth, MOST_PER_TOKEN, "at most"))
    columns = ("tokens", "peak GiB", "over loaded", "KiB a further token", "seconds", "longest silence s", "reports")
    about = f"{name}, {SHAPES[name].parameters / 1e6:.0f} M parameters, loaded {longest.loaded:.2f} GiB"
    return Result(f"long rows {name}", about, columns, lines, figures, bars)


def _row(name: str, directory: Path, tokens: int) -> LongRow:
    command = [sys.executable, "-c", CHILD, str(directory), POOLINGS[name], str(tokens), str(SHAPES[name].vocab)]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return LongRow(tokens, **json.loads(said))


@contextmanager
def _checkpoint(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="synapse-shape-") as folder:
        write_checkpoint(Path(folder), SHAPES[name])
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the shapes named, or both; exit status 1 where a bar was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.long_rows", description=__doc__)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help="gte, qwen3 or both")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="lengths of the rows")
    parser.add_argument("--report-only", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args(arguments)
    console = Console(stderr=True)
    console.print(str(this_machine()), highlight=False)
    missed: list[Bar] = []
    for name in asked.shapes:
        result = measure(name, asked.tokens)
        print_result(console, result)
        print(result.json_line(), flush=True)
        missed += [bar for bar in result.bars if bar.missed]
    return 1 if missed and not asked.report_only else 0


if __name__ == "__main__":
    sys.exit(main())
