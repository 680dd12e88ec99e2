"""Where commands write: results to standard output, everything about them to standard error.

Rich is imported by the first text written for a terminal: the daemon, which starts from the same script, and a pipe
never pay for it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import typer

from synapse_host.cli.command_words import in_commands_words, lost_to_a_command, operation_as_command
from synapse_host.cli.exit_codes import Exit
from synapse_host.client.faults import ConnectionLost, HostUnreachable, JobCancelled, ReplyMismatch
from synapse_host.errors import SettingsInvalid, SynapseError

#: What a text may not send to a terminal: control characters but tab and line feed, and what turns the direction of
#: reading, which makes a line look like another (Unicode annex 9: explicit embeddings, overrides and isolates).
_UNSAFE = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {code: "\ufffd" for code in _UNSAFE if chr(code) not in "\t\n"}
#: The same in JSON, where an escape stands for the character itself; ``json`` writes those below 32 as escapes anyway.
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _UNSAFE if code >= 32}
#: Characters of one detail of a refusal that are shown.
_DETAIL_CHARS = 2000


def print_json(value: Any) -> None:
    """One JSON document on standard output, keys sorted."""
    _write(_as_json(value) + "\n")


def print_text(text: str, *, style: str | None = None) -> None:
    """One line or paragraph on standard output; styled, and freed of control characters, on a terminal."""
    if not sys.stdout.isatty():
        _write(text + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(text.translate(_CONTROLS), style=style or ""), soft_wrap=True)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, whole: Collection[str] = ()
) -> None:
    """A table on a terminal; elsewhere a line of column names and a line per row, separated by tabs.

    The columns named in ``whole`` are never broken over lines, so that what they hold can be copied: a terminal too
    narrow for that gets a line per value. Freed of control characters either way: what reads lines is often a pager.
    """
    shown = [["-" if value is None else str(value).translate(_CONTROLS) for value in row] for row in rows]
    if not sys.stdout.isatty():
        _write("".join("\t".join(map(_one_field, row)) + "\n" for row in [columns, *shown]))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heading = Text(title.translate(_CONTROLS))
    table = Table(title=heading, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in shown:
        table.add_row(*(Text(value) for value in row))
    console = Console()
    if whole and _least_width(columns, shown, whole) > console.width:
        blocks = (Text(_one_below_another(columns, row)) for row in shown)
        console.print(Text("\n\n").join([heading, *blocks]), soft_wrap=True)
    else:
        console.print(table)


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Collection[str]) -> int:
    """Cells of the narrowest table in which no ``whole`` value, and elsewhere no word, is broken; with its lines."""
    from rich.cells import cell_len

    def least(column: str, values: Iterator[str]) -> int:
        parts = (part for value in values for part in ([value] if column in whole else value.split()))
        return 3 + max(map(cell_len, [column, *parts]))

    return 1 + sum(least(column, (row[place] for row in rows)) for place, column in enumerate(columns))


def _one_below_another(columns: Sequence[str], row: Sequence[str]) -> str:
    """A line for each value of a row, behind the name of its column."""
    longest = max(map(len, columns))
    return "\n".join(f"{column:{longest}}  {_one_field(value)}" for column, value in zip(columns, row, strict=True))


def tell(text: str) -> None:
    """A remark on standard error, only when a person is looking."""
    if sys.stderr.isatty():
        sys.stderr.write(text.translate(_CONTROLS) + "\n")


def warn(text: str) -> None:
    """What went differently than asked, on standard error whoever reads it."""
    sys.stderr.write(f"warning: {text.translate(_CONTROLS)}\n")


def fail(status: Exit, message: str) -> NoReturn:
    """Say why on standard error and end with ``status``."""
    sys.stderr.write(f"error: {message.translate(_CONTROLS)}\n")
    raise typer.Exit(status)


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turn what the host, the connection or the environment says into a message and a documented exit status."""
    try:
        yield
    except SynapseError as refusal:
        fail(Exit.REFUSED, _explained(refusal))
    except JobCancelled as ended:
        fail(Exit.REFUSED, str(ended))
    except ConnectionLost as lost:
        fail(Exit.NO_HOST, lost_to_a_command(str(lost)))
    except (HostUnreachable, ReplyMismatch) as broken:
        fail(Exit.NO_HOST, str(broken))
    except SettingsInvalid as wrong:
        fail(Exit.USAGE, str(wrong))
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None


def _explained(refusal: SynapseError) -> str:
    """The refusal on a line, and one more for each detail its message does not say, as the output of a dead worker.

    A detail without a value says nothing to a person and is left out.
    """
    message = in_commands_words(refusal.message)
    lines = [f"{refusal.code}: {message}"]
    for name, value in (refusal.details or {}).items():
        shown = _as_json(operation_as_command(value))
        if value is not None and shown.strip('"') not in message:
            lines.append(f"  {name}: {shown if len(shown) <= _DETAIL_CHARS else '…' + shown[-_DETAIL_CHARS:]}")
    if isinstance(refusal.__cause__, SynapseError):
        lines.append(f"before that, {_explained(refusal.__cause__)}")
    return "\n".join(lines)


class Shown(Protocol):
    """Shows how far something is."""

    def __call__(self, done: int, total: int, /, found: bool = False) -> None:
        """So many steps of so many are done; ``found`` when the last of them took no time now."""
        ...


@contextmanager
def progress_bar(label: str) -> Iterator[Shown]:
    """A bar on standard error, shown only when that is a terminal; call the value with (done, total).

    Steps ``found`` done move the bar and begin the rate anew: they say nothing of how long the others take.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, found=False: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """How many a second, lately."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.0f}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None)

        def show(done: int, total: int, found: bool = False) -> None:
            if found:
                bar.reset(task, completed=done, total=total)
            else:
                bar.update(task, completed=done, total=total)

        yield show


@contextmanager
def byte_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """As ``progress_bar``, for bytes: with the rate and the time left."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _write(text: str) -> None:
    """All of ``text`` to standard output at once, so that a closed pipe shows here and not at the interpreter's end.

    A file name that is no Unicode is written as an escape, which JSON understands too.
    """
    sys.stdout.flush()
    left = memoryview(text.encode("utf-8", "backslashreplace"))
    try:
        # Not the buffered writer: under PYTHONUNBUFFERED there is none, and what a short write leaves over is lost.
        while left:
            left = left[os.write(sys.stdout.fileno(), left) :]
    except BrokenPipeError:
        # The interpreter flushes once more when it ends; that must not meet the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.OUTPUT_CLOSED) from None


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).translate(_JSON_ESCAPES)


def _one_field(text: str) -> str:
    return " ".join(text.split())
