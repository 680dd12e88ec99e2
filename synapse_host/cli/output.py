"""Where commands write: results to standard output, everything about them to standard error.

Rich is imported by the first text written for people: the daemon, which starts from the same script, never pays for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from synapse_host.cli.exit_codes import Exit
from synapse_host.client.faults import ConnectionLost, HostUnreachable, ReplyMismatch
from synapse_host.errors import SynapseError


def print_json(value: Any) -> None:
    """One JSON document on standard output, keys in a stable order."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, sort_keys=True) + "\n")


def print_text(text: str, *, style: str | None = None) -> None:
    """One line or paragraph for people on standard output."""
    from rich.console import Console

    Console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table for people on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row))
    Console().print(table, markup=False)


def tell(text: str) -> None:
    """A remark on standard error, only when a person is looking."""
    if sys.stderr.isatty():
        sys.stderr.write(text + "\n")


def fail(status: Exit, message: str) -> NoReturn:
    """Say why on standard error and end with ``status``."""
    sys.stderr.write(f"error: {message}\n")
    raise typer.Exit(status)


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turn what the host or the connection says into a message and a documented exit status."""
    try:
        yield
    except SynapseError as refusal:
        fail(Exit.REFUSED, f"{refusal.code}: {refusal.message}")
    except (HostUnreachable, ConnectionLost, ReplyMismatch) as broken:
        fail(Exit.NO_HOST, str(broken))
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, shown only when that is a terminal; call the value with (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
