"""What a benchmark found: figures, the bars they are held against, a table for people and a line for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

Figure = float | int | str | bool


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated measurements of one thing."""

    samples: tuple[float, ...]

    @classmethod
    def of(cls, samples: Iterable[float]) -> Spread:
        """The spread of ``samples``, of which there must be one."""
        return cls(tuple(sorted(samples)))

    @property
    def median(self) -> float:
        """The middle of the samples."""
        return statistics.median(self.samples)

    def quantile(self, part: float) -> float:
        """The sample that ``part`` of the others do not pass."""
        return self.samples[min(int(len(self.samples) * part), len(self.samples) - 1)]

    def shown(self, digits: int = 2) -> str:
        """Median and range for a table."""
        low, high = self.samples[0], self.samples[-1]
        return f"{self.median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and what it must be. ``held`` is False where the bar says nothing about this machine."""

    name: str
    figure: float
    limit: float
    sense: Literal["at least", "at most"]
    unit: str = ""
    held: bool = True

    @property
    def met(self) -> bool:
        """Whether the figure passes."""
        return self.figure >= self.limit if self.sense == "at least" else self.figure <= self.limit

    @property
    def missed(self) -> bool:
        """Whether it counts and the figure does not pass."""
        return self.held and not self.met

    def __str__(self) -> str:
        return f"{self.name}: {self.figure:.4g}{self.unit}, must be {self.sense} {self.limit:g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark's outcome. ``rows`` are the lines of its table, ``figures`` what the JSON line carries."""

    benchmark: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    figures: Mapping[str, Figure]
    bars: Sequence[Bar] = field(default_factory=tuple)

    def json_line(self) -> str:
        """Everything a program may want, on one line."""
        bars = [
            {
                "bar": bar.name,
                "figure": bar.figure,
                "sense": bar.sense,
                "limit": bar.limit,
                "held": bar.held,
                "met": bar.met,
            }
            for bar in self.bars
        ]
        return json.dumps({"benchmark": self.benchmark, **self.figures, "bars": bars})


def print_result(console: Console, result: Result) -> None:
    """The table and the bars."""
    table = Table(*result.columns, title=f"{result.benchmark}: {result.about}", title_justify="left")
    for row in result.rows:
        table.add_row(*row)
    console.print(table)
    for bar in result.bars:
        word = "met" if bar.met else "MISSED"
        console.print(f"  {word if bar.held else 'not held on this machine'}: {bar}", highlight=False)
