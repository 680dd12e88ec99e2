"""What becomes of a host whose worker misbehaves: every misbehaviour in every operation, as a table.

Each cell says why the caller's request ended and how many strikes the lane counted; after each, the next request was
served. Run: ``python -m benchmarks.misbehaviour``. Exit status 1: a cell is not as it
must be.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from synapse_host.testing.workers.misbehaviour_cases import OPERATIONS, cases
from synapse_host.testing.workers.misbehaviour_matrix import Outcome, play_all

#: Wide enough for every column when the output is no terminal.
_WIDTH = 310


def main() -> int:
    """Play and print the matrix; returns the exit status."""
    # Every worker's end is logged as a warning; here they all are meant to end.
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = anyio.run(play_all, list(cases()), Path(folder))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    console.print(table_of(outcomes))
    wrong = [outcome for outcome in outcomes if outcome.problem is not None]
    for outcome in wrong:
        console.print(f"{outcome.case.name}: {outcome.problem}", style="bold red", highlight=False)
    served = sum(outcome.served for outcome in outcomes)
    console.print(f"{len(outcomes)} cases, {served} with the next request served, {len(wrong)} not as expected")
    return 1 if wrong else 0


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Misbehaviours down, operations across."""
    cells = {(outcome.case.kind, outcome.case.operation): outcome.shown for outcome in outcomes}
    table = Table("misbehaviour", *OPERATIONS)
    for kind in dict.fromkeys(outcome.case.kind for outcome in outcomes):
        table.add_row(kind, *(cells.get((kind, operation), "") for operation in OPERATIONS))
    return table


if __name__ == "__main__":
    sys.exit(main())
