"""Every benchmark, beside its peers, and the bars they must meet. Run by ``make bench``.

A table for people goes to standard error and one JSON line per benchmark to standard output. Exit status 1: a bar was
missed; 2: a benchmark could not be run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from benchmarks import (
    bulk,
    download,
    generation,
    interactive_under_bulk,
    peers,
    single_query,
    start_up,
    vector_forms,
    worker_exchange,
    worker_memory,
)
from benchmarks.machine import Machine, this_machine
from benchmarks.recorded_host import RecordedHost, recorded_host
from benchmarks.result import Bar, Result, print_result

BULK_PASSES, PEER_PASSES, QUERIES, STARTS, PROMPTS, DOWNLOADS = 9, 3, 2000, 9, 12, 5


@dataclass(frozen=True, slots=True)
class Setting:
    """What a benchmark is given. The host is started when the first one asks for it."""

    machine: Machine
    host: Callable[[], RecordedHost]


BENCHMARKS: dict[str, Callable[[Setting], Result]] = {
    "start": lambda setting: start_up.measure(STARTS),
    "download": lambda setting: download.measure(DOWNLOADS, held=not setting.machine.busy),
    "worker": lambda setting: worker_exchange.measure(held=not setting.machine.busy),
    "vectors": lambda setting: vector_forms.measure(),
    "single": lambda setting: single_query.measure(setting.host(), QUERIES),
    "bulk": lambda setting: bulk.measure(setting.host(), setting.machine, BULK_PASSES),
    "peers": lambda setting: peers.measure(setting.host(), PEER_PASSES),
    "memory": lambda setting: worker_memory.measure(setting.host()),
    "interactive": lambda setting: interactive_under_bulk.measure(
        setting.host(), interactive_under_bulk.ITEMS, held=not setting.machine.busy
    ),
    "generation": lambda setting: generation.measure(PROMPTS),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks named, or all; returns the exit status."""
    asked = _parser().parse_args(arguments)
    console = Console(stderr=True)
    machine = this_machine()
    console.print(str(machine), highlight=False)
    if machine.busy:
        console.print("other programs are using this machine: ratios still mean something, absolute figures do not")
    missed: list[Bar] = []
    for result in _results(asked.only or list(BENCHMARKS), machine):
        print_result(console, result)
        print(result.json_line(), flush=True)
        missed += [bar for bar in result.bars if bar.missed]
    for bar in missed:
        console.print(f"missed: {bar}", style="bold red", highlight=False)
    return 1 if missed and not asked.report_only else 0


def _results(names: Sequence[str], machine: Machine) -> Iterator[Result]:
    with ExitStack() as stack:
        started: list[RecordedHost] = []

        def host() -> RecordedHost:
            if not started:
                started.append(stack.enter_context(recorded_host()))
            return started[0]

        for name in names:
            yield BENCHMARKS[name](Setting(machine, host))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.run_all", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), help="run these instead of all")
    parser.add_argument("--report-only", action="store_true", help="exit 0 whatever the figures are")
    return parser


if __name__ == "__main__":
    sys.exit(main())
