"""When a request would begin and end on a device, as arithmetic. Pure; ``docs/explanation/admission.md`` derives it.

All figures are milliseconds. For a deadline, what others take is stretched by ``HEADROOM``: an estimate wrong by no
more than that makes nobody late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from synapse_host.admission.fair_queue import AGEING_S, INTERACTIVE_IN_A_ROW
from synapse_host.admission.work_class import WorkClass
from synapse_host.values import value_object

#: The factor by which the estimates of others may be too small before a request that was admitted begins too late.
HEADROOM = 1.5
AGEING_MS = AGEING_S * 1000


@value_object
class DeviceLoad:
    """What is known of a device at one moment.

    ``running_ms`` has the estimate and the age of each running computation; ``groups`` and ``waiting_ms`` what waits by
    class. ``interactive_ms`` is what an interactive turn takes on average, ``interactive_most_ms``, ``bulk_ms`` and
    ``job_ms`` what one of these takes at most; 0 where none was seen lately. ``bulk_ms`` and ``job_ms`` are 0 where
    there is no bulk, or no job: what is admitted then keeps back what comes of them until it has gone. ``held_back``
    says that interactive work waits that so keeps back requests for bulk.
    """

    permits: int
    free: bool
    running_ms: Sequence[tuple[float, float]]
    groups: Mapping[WorkClass, int]
    waiting_ms: Mapping[WorkClass, float]
    passed_over: int = 0
    passed_over_ms: float = 0.0
    bulk_went_last: bool = False
    bulk_running: bool = False
    held_back: bool = False
    interactive_ms: float = 0.0
    interactive_most_ms: float = 0.0
    bulk_ms: float = 0.0
    job_ms: float = 0.0


_NOTHING: Mapping[WorkClass, int] = MappingProxyType(dict.fromkeys(WorkClass, 0))
#: A device that takes up whoever asks, for work of one group: nothing else about it matters then.
FREE = DeviceLoad(permits=1, free=True, running_ms=(), groups=_NOTHING, waiting_ms=_NOTHING)


@value_object
class Work:
    """What a request wants computed: its class, and the estimate of each of its groups in the order they go.

    ``known`` is whether the estimates rest on enough that was measured for a refusal to rest on them.
    """

    work_class: WorkClass
    group_ms: Sequence[float]
    known: bool = True


@value_object
class Prediction:
    """When a request is expected to begin, and when it begins and ends if others take ``HEADROOM`` times as long."""

    start_ms: float
    latest_start_ms: float
    finish_ms: float


def predict(work: Work, load: DeviceLoad) -> Prediction:
    """When ``work`` would begin and end on a device under ``load``."""
    own = sum(work.group_ms)
    if load.free and len(work.group_ms) == 1:
        return Prediction(0.0, 0.0, own)
    between = HEADROOM * (len(work.group_ms) - 1) * _between(work.work_class, load, HEADROOM) / load.permits
    if load.free:
        return Prediction(0.0, 0.0, own + between)
    expected, latest = (_start(work.work_class, load, stretch) for stretch in (1.0, HEADROOM))
    return Prediction(expected, latest, latest + own + between)


def _start(work_class: WorkClass, load: DeviceLoad, stretch: float) -> float:
    """When a device that is not free would take up one that asks now."""
    running = sum(max(0.0, stretch * estimate - age) for estimate, age in load.running_ms)
    return (running + _ahead(work_class, load, stretch, running)) / load.permits


def _ahead(work_class: WorkClass, load: DeviceLoad, stretch: float, running: float) -> float:
    """What waits and goes before one that asks now, and what may come and go before it."""
    before = stretch * load.waiting_ms[WorkClass.CONTROL]
    # Bulk is not passed over while bulk is computed.
    passing = before if load.bulk_running else running + before
    if work_class is WorkClass.INTERACTIVE:
        return before + _queries(load, stretch, passing, load.bulk_ms)
    if work_class is WorkClass.CONTROL:
        return before
    if load.held_back:
        before += _queries(load, stretch, passing, load.job_ms)
    others = load.waiting_ms[WorkClass.BULK] + (load.groups[WorkClass.BULK] + 1) * _between(work_class, load, stretch)
    return before + stretch * others


def _queries(load: DeviceLoad, stretch: float, passing: float, bulk_ms: float) -> float:
    """What waits of interactive work, with the bulk turns that may go among it, each of ``bulk_ms``."""
    waiting = stretch * load.waiting_ms[WorkClass.INTERACTIVE]
    turns = _bulk_turns_among(load.groups[WorkClass.INTERACTIVE], passing + waiting, load)
    return waiting + stretch * turns * bulk_ms


def _bulk_turns_among(interactive: int, duration_ms: float, load: DeviceLoad) -> int:
    """Bulk turns at most before an interactive one that has so many others before it.

    Three interactive turns let one bulk turn in, and so does every 250 ms in which bulk is passed over; but there are
    never two in a row while interactive work waits.
    """
    by_share = (load.passed_over + interactive) // INTERACTIVE_IN_A_ROW
    by_age = int((load.passed_over_ms + duration_ms) // AGEING_MS)
    return min(by_share + by_age, interactive + (0 if load.bulk_went_last else 1))


def _between(work_class: WorkClass, load: DeviceLoad, stretch: float) -> float:
    """What may go between two turns of the bulk share: one job's turn, and interactive turns before each.

    What is expected goes by usual interactive turns, what is promised by the largest.
    """
    if not work_class.is_bulk:
        # Groups of one interactive request follow each other with at most a bulk turn between.
        return load.bulk_ms
    one = load.interactive_most_ms if stretch > 1.0 else load.interactive_ms
    passing = min(INTERACTIVE_IN_A_ROW * one, AGEING_MS + one)
    return passing if not load.job_ms else 2 * passing + load.job_ms
