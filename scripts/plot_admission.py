"""Draw the figures of ``docs/explanation/admission.md`` from the simulation; run it from the root of the checkout.

It needs nothing but the project: the drawings are plain SVG, and the same seeds give the same drawings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from synapse_host.admission.work_class import WorkClass
from synapse_host.testing.admission_simulation import Outcome, Scenario, Simulation

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "explanation"
SEEDS, TURNS = range(30), 2000
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 300, 60, 20, 20, 46
Point = tuple[float, float]
#: Readable on a light and on a dark page.
INK, FIRST, SECOND = "#7a7a7a", "#1f77b4", "#d9730d"


def main() -> None:
    """Write both drawings."""
    FOLDER.joinpath("admission-start-delay.svg").write_text(start_delays(), "utf-8")
    FOLDER.joinpath("admission-prediction.svg").write_text(predictions(), "utf-8")


def start_delays() -> str:
    """How long queries wait beside bulk work, in this queue and in one that is first come, first served."""
    curves = []
    for query_class, colour, name in (
        (WorkClass.INTERACTIVE, FIRST, "queries go before bulk, three to one"),
        (WorkClass.JOB, SECOND, "first come, first served"),
    ):
        scenario = Scenario(
            query_class=query_class, burst_every_ms=400, burst_quiet_ms=200, jobs=4, query_deadlines=(1e9, 1e9)
        )
        outcomes = [Simulation(scenario, seed).run(TURNS) for seed in SEEDS]
        curves.append((shares(queries(outcomes), most=8.0), colour, name))
    axes = Axes(8.0, 1.0, "start delay of a query, in bulk groups", "share of queries")
    return axes.drawing([axes.curve(points, colour) for points, colour, _ in curves], [c[1:] for c in curves])


def queries(outcomes: Sequence[Outcome]) -> list[float]:
    """Start delays of all queries, in mean group times."""
    return [
        it.start_delay_ms / outcome.mean_group_ms
        for outcome in outcomes
        for it in outcome.requests
        if it.started_at is not None
    ]


def shares(values: Sequence[float], most: float) -> list[Point]:
    """The share of values up to each of two hundred steps."""
    ordered, place, points = sorted(values), 0, []
    for step in range(201):
        at = most * step / 200
        while place < len(ordered) and ordered[place] <= at:
            place += 1
        points.append((at, place / len(ordered)))
    return points


def predictions() -> str:
    """What admitted requests were told at most, and when they began."""
    axes = Axes(2.0, 2.0, "latest start predicted at admission, s", "start, s")
    scenario = Scenario(burst_every_ms=90, jobs=1, batch_every_ms=900, batch_deadlines=(500, 4000))
    dots = []
    for it in Simulation(scenario, seed=0).run(1500).requests:
        if it.started_at is not None and it.predicted.latest_start_ms > 0:
            colour = FIRST if it.work.work_class is WorkClass.INTERACTIVE else SECOND
            dots.append(axes.dot(it.predicted.latest_start_ms / 1000, it.start_delay_ms / 1000, colour))
    line = axes.curve([(0.0, 0.0), (2.0, 2.0)], INK)
    return axes.drawing([*dots, line], [(FIRST, "query"), (SECOND, "batch")])


class Axes:
    """A frame from zero to ``across`` and ``up``."""

    def __init__(self, across: float, up: float, below: str, beside: str) -> None:
        self._across, self._up, self._below, self._beside = across, up, below, beside

    def place(self, x: float, y: float) -> Point:
        """Where a value lies in the drawing; what lies outside is put on the edge."""
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + width * min(x / self._across, 1.0), HEIGHT - BOTTOM - height * min(y / self._up, 1.0)

    def curve(self, points: Sequence[Point], colour: str) -> str:
        """A line through ``points``."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'

    def dot(self, x: float, y: float, colour: str) -> str:
        """One dot."""
        across, down = self.place(x, y)
        return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="1.6" fill="{colour}" fill-opacity="0.5"/>'

    def drawing(self, marks: Sequence[str], legend: Sequence[tuple[str, str]]) -> str:
        """The whole drawing."""
        named = [
            f'<text x="{WIDTH - RIGHT - 8}" y="{HEIGHT - BOTTOM - 14 - 18 * row}" text-anchor="end" fill="{colour}">'
            f"{name}</text>"
            for row, (colour, name) in enumerate(legend)
        ]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
                'font-size="12">',
                *self._frame(),
                *marks,
                *named,
                "</svg>\n",
            ]
        )

    def _frame(self) -> list[str]:
        parts = []
        for step in range(5):
            x, y = self.place(self._across * step / 4, 0)
            parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle" fill="{INK}">')
            parts[-1] += f"{self._across * step / 4:g}</text>"
            x, y = self.place(0, self._up * step / 4)
            parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">')
            parts[-1] += f"{self._up * step / 4:g}</text>"
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{INK}" ')
            parts[-1] += 'stroke-opacity="0.3"/>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="{INK}">{self._below}</text>')
        down = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'transform="rotate(-90 14 {down})" text-anchor="middle" fill="{INK}"'
        parts.append(f'<text x="14" y="{down}" {turned}>{self._beside}</text>')
        return parts


if __name__ == "__main__":
    main()
