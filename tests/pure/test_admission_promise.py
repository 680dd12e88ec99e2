"""The promise of admission, for any order of events: who is admitted begins no later than was predicted.

It holds for interactive requests whatever comes after them, as long as nothing takes more than the stated factor of its
estimate, and bulk groups are as large as those seen before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.admission.prediction import HEADROOM, Work, predict
from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import WorkClass

INTERACTIVE, BULK, JOB = WorkClass.INTERACTIVE, WorkClass.BULK, WorkClass.JOB
#: Rounding of milliseconds to seconds and back.
HAIR_MS = 1e-6


@dataclass
class Device:
    """One device in virtual time; what runs ends when the clock is moved past its end."""

    now_ms: float = 0.0
    ends: list[tuple[float, Turn]] = field(default_factory=list)
    #: When requests began, and when they were to have begun at the latest.
    late: list[tuple[float, float]] = field(default_factory=list)
    _after: dict[int, list[float]] = field(default_factory=dict)
    _kept: dict[int, tuple[Turn, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = DeviceTurns(clock=lambda: self.now_ms / 1000)

    def ask(self, work_class: WorkClass, groups: list[float], factor: float) -> None:
        """Ask for the first of ``groups``; the others follow one by one, each taking ``factor`` of its estimate."""
        predicted = predict(Work(work_class, groups), self.turns.load()).latest_start_ms
        self._ask(work_class, groups, factor, self.now_ms + predicted, first=True)

    def _ask(
        self,
        work_class: WorkClass,
        groups: list[float],
        factor: float,
        latest_ms: float,
        *,
        first: bool,
        keeps_back: tuple[WorkClass, ...] = (),
    ) -> None:
        estimate, *others = groups

        def begin() -> None:
            if first and work_class is INTERACTIVE and self.now_ms > latest_ms + HAIR_MS:
                self.late.append((self.now_ms, latest_ms))
            self.ends.append((self.now_ms + factor * estimate, turn))
            self._after[id(turn)] = others

        turn = Turn(begin, work_class, estimate, len(others), sum(others), not first, keeps_back)
        self._kept[id(turn)] = (turn, factor)
        self.turns.ask(turn)

    def move(self, until_ms: float) -> None:
        """Let time pass, and everything end and begin that does so until then."""
        while self.ends and min(self.ends, key=lambda end: end[0])[0] <= until_ms:
            self.ends.sort(key=lambda end: end[0])
            self.now_ms, turn = self.ends.pop(0)
            others = self._after.pop(id(turn))
            if others:
                factor = self._kept[id(turn)][1]
                self._ask(turn.work_class, others, factor, 0.0, first=False, keeps_back=turn.keeps_back)
            self.turns.end(turn)
        self.now_ms = max(self.now_ms, until_ms)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([INTERACTIVE, INTERACTIVE, BULK, JOB]),
        st.floats(0.5, 300.0),
        st.integers(1, 5),
        # Long enough at times for bulk to be reckoned with no more.
        st.one_of(st.just(0.0), st.floats(0.0, 120.0), st.floats(250.0, 1000.0)),
        st.sampled_from([0.1, 1.0, HEADROOM, HEADROOM]),
    ),
    max_size=40,
)


@settings(max_examples=400)
@given(events=EVENTS, group_ms=st.floats(5.0, 400.0))
def test_nobody_begins_later_than_predicted(
    events: list[tuple[WorkClass, float, int, float, float]], group_ms: float
) -> None:
    device = Device()
    # One bulk group was seen: from then on it is known how long one takes.
    device.ask(BULK, [group_ms], 1.0)
    for work_class, estimate, groups, gap, factor in events:
        device.move(device.now_ms + gap)
        wanted = [estimate] if work_class is INTERACTIVE else [group_ms] * groups
        device.ask(work_class, wanted, factor)
    device.move(device.now_ms + 1e7)
    assert device.late == []
    assert device.turns.free
