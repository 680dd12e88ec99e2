"""Whose turn is next on a device: control first, then three interactive to one bulk, and bulk that aged (reading 26).

Pure: time is an argument, in seconds. The rule, in the order it is applied:

1. Control goes first.
2. Where only one of interactive and bulk waits, that one goes.
3. Bulk of a kind, requests or jobs, waits for what was admitted while there was none of that kind.
4. After a bulk turn the next is interactive's, whatever made the bulk turn come.
5. Bulk goes when three interactive turns have passed it over, or when it has been passed over for 250 ms.
6. Otherwise interactive goes.

Bulk is passed over while it may go and no bulk work is computed; time it spends behind other bulk work is no reason to
make a query wait, nor is time it waits by the third rule, which whoever asks while it waits does not prolong. Within
the bulk share, requests and durable jobs alternate. A request keeps its place until its last group, so that what was
predicted when it was admitted cannot be undone by who comes later; jobs, which have a day, go to the back after each
group.
"""

from __future__ import annotations

from collections import deque

from synapse_host.admission.turn import Turn
from synapse_host.admission.work_class import BULK_KINDS, WorkClass

#: Interactive turns that may pass bulk over (weights 3:1, original facts section 4).
INTERACTIVE_IN_A_ROW = 3
#: Seconds after which bulk that is passed over takes the next turn (original facts section 4).
AGEING_S = 0.25


class FairQueue:
    """What waits for one device, and what may go next."""

    def __init__(self) -> None:
        self._waiting: dict[WorkClass, deque[Turn]] = {work_class: deque() for work_class in WorkClass}
        self._job_went_last = False
        self._bulk_running = 0
        self._bulk_ended_at = float("-inf")
        self._length = 0
        #: How many wait that keep a kind of bulk back, and when the last of them left.
        self._keeping = dict.fromkeys(BULK_KINDS, 0)
        self._free_since = dict.fromkeys(BULK_KINDS, float("-inf"))
        #: Whether the last turn of interactive or bulk was bulk's.
        self.bulk_went_last = False
        #: Interactive turns taken while bulk waited, since the last bulk turn.
        self.passed_over = 0

    def __len__(self) -> int:
        return self._length

    def depth(self, work_class: WorkClass) -> int:
        """How many of a class wait."""
        return len(self._waiting[work_class])

    @property
    def bulk_waits(self) -> bool:
        """Whether anything of the bulk share waits."""
        return bool(self._waiting[WorkClass.BULK] or self._waiting[WorkClass.JOB])

    def put(self, turn: Turn, now: float) -> None:
        """Let ``turn`` wait from ``now`` on."""
        turn.asked_at = now
        self._length += 1
        for kind in turn.keeps_back:
            self._keeping[kind] += 1
        line = self._waiting[turn.work_class]
        if turn.continues and turn.work_class is WorkClass.BULK:
            line.appendleft(turn)
        else:
            line.append(turn)

    def remove(self, turn: Turn, now: float) -> bool:
        """Let ``turn`` wait no more; False where it does not."""
        line = self._waiting[turn.work_class]
        if turn not in line:
            return False
        line.remove(turn)
        self._left(turn, now)
        return True

    def take(self, now: float) -> Turn | None:
        """What goes next, out of the queue; None where nothing waits. ``ended`` must follow when it is over."""
        work_class = self._next_class(now)
        if work_class is None:
            return None
        if work_class is WorkClass.INTERACTIVE:
            self.passed_over = 0 if self._bulk_head() is None else self.passed_over + 1
            self.bulk_went_last = False
        elif work_class.is_bulk:
            self.passed_over, self.bulk_went_last = 0, True
            self._job_went_last = work_class is WorkClass.JOB
            self._bulk_running += 1
        turn = self._waiting[work_class].popleft()
        self._left(turn, now)
        return turn

    def ended(self, work_class: WorkClass, now: float) -> None:
        """Something taken from here has been computed."""
        if work_class.is_bulk:
            self._bulk_running -= 1
            self._bulk_ended_at = now

    def passed_over_s(self, now: float) -> float:
        """Seconds for which the head of the bulk share has been passed over; 0 where none waits or may go."""
        head = self._bulk_head()
        if head is None or self._bulk_running:
            return 0.0
        return now - max(head.asked_at, self._bulk_ended_at, self._free_since[head.work_class])

    def _next_class(self, now: float) -> WorkClass | None:
        if self._waiting[WorkClass.CONTROL]:
            return WorkClass.CONTROL
        head = self._bulk_head()
        if not self._waiting[WorkClass.INTERACTIVE]:
            return None if head is None else head.work_class
        if head is None or self.bulk_went_last:
            return WorkClass.INTERACTIVE
        due = self.passed_over >= INTERACTIVE_IN_A_ROW or self.passed_over_s(now) >= AGEING_S
        return head.work_class if due else WorkClass.INTERACTIVE

    def _bulk_head(self) -> Turn | None:
        """What of the bulk share goes next, of that which may go."""
        request, job = (self._head(kind) for kind in BULK_KINDS)
        if request is not None and (self._job_went_last or job is None):
            return request
        return job

    def _head(self, kind: WorkClass) -> Turn | None:
        line = self._waiting[kind]
        return line[0] if line and not self._keeping[kind] else None

    def _left(self, turn: Turn, now: float) -> None:
        self._length -= 1
        for kind in turn.keeps_back:
            self._keeping[kind] -= 1
            self._free_since[kind] = now
