"""The cpu lane's families beside transformers in bfloat16 and ONNX Runtime in float32, cell by cell.

    python -m benchmarks.family_speed minilm|gte|qwen3 [--report-only] [--sides ours transformers onnx]

A cell is so many rows of so many tokens. Every side computes a cell at the batch size that is its own best for that
length, which is looked for first; our engine chooses its own. The sides take turns cell by cell, in one run, each after
a rest in which the threads of the one before it stop spinning.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rich.console import Console

from benchmarks.family_sides import Answer, Cell, Pooling, make_onnx, make_ours, make_transformers
from benchmarks.machine import this_machine
from benchmarks.peers import least_cosine
from benchmarks.random_checkpoints import SHAPES, write_checkpoint
from benchmarks.result import Bar, Result, Spread, print_result
from benchmarks.side_process import SideFailed, SideProcess
from synapse_host.testing.models.minilm import minilm_directory

ROWS, TOKENS = (1, 8, 32), (32, 256, 512)
#: Rows at once a peer is tried with, and the tokens of a trial: enough to tell sizes apart.
AT_ONCE, TRIAL_TOKENS = (1, 2, 4, 8, 16, 32), 2048
#: A cell is repeated until so many seconds of ours have passed, at most ``MOST_REPEATS`` times; a large one runs once.
CELL_S, MOST_REPEATS = 1.0, 5
#: Threads of OpenMP and of ONNX Runtime spin for some milliseconds after a call, on the cores of whoever is next.
REST_S = 0.05
#: bf16 beside bf16 or float32 of the same weights.
LEAST_COSINE = 0.999

Peer = SideProcess[Cell, Answer]


@dataclass(frozen=True, slots=True)
class Subject:
    """One model: its pooling, its vocabulary, and how many times the faster peer it must be."""

    pooling: Pooling
    vocab: int
    least: float


SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "minilm": Subject("mean", 30_522, 1.6),
        "gte": Subject("cls", SHAPES["gte"].vocab, 1.2),
        "qwen3": Subject("last", SHAPES["qwen3"].vocab, 1.2),
    }
)
#: Peers by name. ONNX Runtime takes the weights of Qwen3 several times over in float32, more memory than this
#: comparison may, and computes at half the rate of bfloat16.
PEERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"minilm": ("transformers", "onnx"), "gte": ("transformers", "onnx"), "qwen3": ("transformers",)}
)
_TITLES = {"transformers": "transformers bf16", "onnx": "ONNX Runtime fp32"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One cell: tokens a second of each side, and the smallest cosine of ours to the first peer's vectors."""

    rows: int
    tokens: int
    speeds: Mapping[str, float]
    at_once: Mapping[str, int]
    cosine: float

    @property
    def ratio(self) -> float:
        """How many times the faster peer we are."""
        return self.speeds["ours"] / max(speed for side, speed in self.speeds.items() if side != "ours")


def measure(name: str, sides: Sequence[str], rows: Sequence[int] = ROWS, tokens: Sequence[int] = TOKENS) -> Result:
    """Every cell of one model.

    Raises:
        SideFailed: our side or every peer could not be made.

    """
    subject = SUBJECTS[name]
    with _model(name) as directory, ExitStack() as stack:
        ours = stack.enter_context(SideProcess(make_ours, directory, subject.pooling, max(TOKENS)))
        peers = {side: peer for side in sides if (peer := _peer(stack, side, directory, subject)) is not None}
        if not peers:
            raise SideFailed("no peer could be made; install benchmarks/requirements.txt")
        began = time.perf_counter()
        cells = [*_cells(ours, peers, subject, rows, tokens)]
        seconds = time.perf_counter() - began
    return _result(name, subject, cells, [*peers], seconds)


def _peer(stack: ExitStack, side: str, directory: Path, subject: Subject) -> Peer | None:
    make = {"transformers": make_transformers, "onnx": make_onnx}[side]
    try:
        return stack.enter_context(SideProcess(make, directory, subject.pooling))
    except SideFailed as failed:
        print(f"{_TITLES[side]} is left out: {str(failed).strip().splitlines()[-1]}", file=sys.stderr)
        return None


@contextmanager
def _model(name: str) -> Iterator[Path]:
    if name == "minilm":
        yield minilm_directory()
        return
    with tempfile.TemporaryDirectory(prefix="synapse-shape-") as folder:
        write_checkpoint(Path(folder), SHAPES[name])
        yield Path(folder)


def _cells(
    ours: Peer, peers: Mapping[str, Peer], subject: Subject, rows: Sequence[int], lengths: Sequence[int]
) -> Iterator[Measured]:
    for tokens in lengths:
        best = {side: _best_size(peer, tokens, subject.vocab) for side, peer in peers.items()}
        for count in rows:
            yield _cell(ours, peers, Cell(count, tokens, subject.vocab), best)


def _best_size(peer: Peer, tokens: int, vocab: int) -> int:
    rows = max(1, TRIAL_TOKENS // tokens)
    sizes = [size for size in AT_ONCE if size <= rows]
    peer(Cell(rows, tokens, vocab, sizes[-1]))
    return min(sizes, key=lambda size: peer(Cell(rows, tokens, vocab, size, seed=size)).seconds)


def _cell(ours: Peer, peers: Mapping[str, Peer], cell: Cell, best: Mapping[str, int]) -> Measured:
    sides = {"ours": ours, **peers}
    at_once = {side: min(best[side], cell.rows) for side in peers}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cosine = 1.0
    for repeat in range(MOST_REPEATS):
        answers = {
            side: _turn(work, replace(cell, at_once=at_once.get(side, 0), seed=repeat + 100))
            for side, work in sides.items()
        }
        for side, answer in answers.items():
            seconds[side].append(answer.seconds)
            cosine = min(cosine, least_cosine(answers["ours"].vectors, answer.vectors))
        if sum(seconds["ours"]) > CELL_S:
            break
    total = cell.rows * cell.tokens
    speeds = {side: total / Spread.of(taken).median for side, taken in seconds.items()}
    return Measured(cell.rows, cell.tokens, speeds, at_once, cosine)


def _turn(side: Peer, cell: Cell) -> Answer:
    """A side's answer once the cores are its own.

    A cell of few tokens is computed twice and timed the second time: the rest, and what others left in the caches,
    would be most of it.
    """
    time.sleep(REST_S)
    if cell.rows * cell.tokens <= TRIAL_TOKENS:
        side(replace(cell, seed=cell.seed + MOST_REPEATS))
    return side(cell)


def _result(name: str, subject: Subject, cells: Sequence[Measured], peers: Sequence[str], seconds: float) -> Result:
    mean = math.exp(math.fsum(math.log(cell.ratio) for cell in cells) / len(cells))
    worst, cosine = min(cell.ratio for cell in cells), min(cell.cosine for cell in cells)
    columns = ("rows x tokens", "cpu lane", *(_TITLES[side] for side in peers), "times the faster")
    lines = [
        (
            f"{cell.rows} x {cell.tokens}",
            f"{cell.speeds['ours']:,.0f}",
            *(f"{cell.speeds[side]:,.0f} (by {cell.at_once[side]})" for side in peers),
            f"{cell.ratio:.2f}",
        )
        for cell in cells
    ]
    figures = {
        f"{side}_{cell.rows}x{cell.tokens}": round(speed, 1) for cell in cells for side, speed in cell.speeds.items()
    }
    figures |= {"ratio_mean": mean, "ratio_worst": worst, "min_cosine": cosine, "seconds": round(seconds)}
    bars = (
        Bar("times the faster peer, geometric mean of the cells", mean, subject.least, "at least"),
        Bar("times the faster peer in the worst cell", worst, 1.0, "at least"),
        Bar("smallest cosine to a peer", cosine, LEAST_COSINE, "at least"),
    )
    about = f"{name}, real tokens a second, smallest cosine {cosine:.6f}, {seconds:.0f} s"
    return Result(f"family speed {name}", about, columns, lines, figures, bars)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one model; exit status 1 where a bar was missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.family_speed", description=__doc__)
    parser.add_argument("model", choices=list(SUBJECTS))
    parser.add_argument("--sides", nargs="+", choices=list(_TITLES), help="the peers, instead of all there is room for")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="rows of a cell")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="tokens of a row, 512 at most")
    parser.add_argument("--report-only", action="store_true", help="exit 0 whatever the figures are")
    asked = parser.parse_args(arguments)
    console = Console(stderr=True)
    console.print(str(this_machine()), highlight=False)
    result = measure(asked.model, asked.sides or PEERS[asked.model], asked.rows, asked.tokens)
    print_result(console, result)
    print(result.json_line(), flush=True)
    missed = [bar for bar in result.bars if bar.missed]
    return 1 if missed and not asked.report_only else 0


if __name__ == "__main__":
    sys.exit(main())
