"""What a run on a CUDA device found, written as it comes: one JSON file and one page, whole after every finding."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


#: Exit status of a run that was stopped from outside its parts.
STOPPED = 3
#: Seconds after which a part is told once more that its time is spent, should the first telling have got lost.
_AGAIN = 5.0


class PartOver(BaseException):
    """A part's time is spent; no exception, so that nobody takes it for one that a part may go on after."""


class Evidence:
    """Findings by part; ``write`` leaves two files beside each other."""

    def __init__(self, folder: Path, device: Mapping[str, Any], stand_in: bool) -> None:
        self.folder = folder
        self.device = dict(device)
        self.stand_in = stand_in
        self.parts: dict[str, list[Row]] = {}
        self.notes: list[str] = []
        self._began = time.monotonic()

    @property
    def path(self) -> Path:
        """The JSON file; the page has its name with another ending."""
        name = re.sub(r"[^a-z0-9]+", "-", str(self.device.get("name", "unknown")).lower()).strip("-")
        return self.folder / f"cuda-{name}.json"

    def add(self, part: str, row: Row) -> None:
        """Keep a finding and write everything there is."""
        self.parts.setdefault(part, []).append(row)
        self.write()

    def note(self, text: str) -> None:
        """Say something of the run itself."""
        self.notes.append(text)
        self.write()

    def write(self) -> None:
        """Both files, each replaced whole."""
        self.folder.mkdir(parents=True, exist_ok=True)
        found = {"device": self.device, "stand_in": self.stand_in, "seconds": round(time.monotonic() - self._began, 1)}
        found |= {"parts": self.parts, "notes": self.notes}
        _replace(self.path, json.dumps(found, indent=1, default=str) + "\n")
        _replace(self.path.with_suffix(".md"), self.page())

    def failures(self) -> list[str]:
        """What makes the run a failed one: a disagreement, an error of ours, or agreement that was not shown whole."""
        ours = [(part, row) for part, rows in self.parts.items() if part != "transformers" for row in rows]
        wrong = [f"{part}: {dict(row)}" for part, row in ours if "error" in row or row.get("agrees") is False]
        cut = [note for note in self.notes if not note.startswith("transformers ")]
        missing = [] if self.parts.get("agreement") else ["agreement: nothing was compared"]
        return [*wrong, *cut, *missing]

    def page(self) -> str:
        """The findings for people."""
        lines = [f"# CUDA on {self.device.get('name', 'an unknown device')}", ""]
        if self.stand_in:
            lines += ["NumPy stood in for the device: nothing here is a figure of a GPU.", ""]
        lines += [f"- {key}: {value}" for key, value in self.device.items()]
        for part, rows in self.parts.items():
            lines += ["", f"## {part}", "", *_table(rows)]
        if self.notes:
            lines += ["", "## Notes", "", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"


@contextmanager
def part_of(evidence: Evidence, name: str, seconds: float) -> Iterator[None]:
    """A part that ends in time, or is cut off, and whose failure does not end the run."""

    def ring(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        raise PartOver

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    except PartOver:
        signal.setitimer(signal.ITIMER_REAL, 0)
        evidence.note(f"{name} was cut off after its {seconds:.0f} s")
    except Exception as failure:  # the next part may still say something
        evidence.note(f"{name} ended with {type(failure).__name__}: {failure}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def watched(evidence: Evidence, seconds: float, end: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Ends the process after ``seconds``, with what was found on disk, whatever the device is doing.

    A part is cut off between two steps of Python; a kernel that never ends is one step.
    """

    def stop() -> None:
        evidence.note(f"the run did not end by itself and was stopped after {seconds:.0f} s")
        end(STOPPED)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _table(rows: list[Row]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return [*lines, *(f"| {' | '.join(_cell(row.get(column, '')) for column in columns)} |" for row in rows)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value).replace("|", "/").replace("\n", " ")


def _replace(path: Path, text: str) -> None:
    written = path.with_name(path.name + ".new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)
