"""The decision to take or refuse one request, as arithmetic without I/O.

A request is accepted only if its bytes fit beside those already in flight and it is predicted to start within its
queue bound and to finish within its deadline. The order of the three checks is fixed: bytes, start, finish.

On an idle device a refusal serves nobody better. So there the third check refuses only a request that named its
deadline itself, and only by an estimate that rests on enough measurements: a limit nobody asked for, or the first slow
batch of a cold machine, would turn away what the device could as well begin with.
"""

from __future__ import annotations

from typing import Literal

from synapse_host.admission.estimates import FLOOR_MS
from synapse_host.admission.prediction import DeviceLoad, Prediction, Work, predict
from synapse_host.values import value_object

#: Bytes counted for an item beside its text: id, token counts and row bookkeeping.
ITEM_OVERHEAD_BYTES = 128


@value_object
class Refused:
    """A refusal with the numbers that made it."""

    reason: Literal["never_fits", "bytes", "queue", "deadline"]
    limit: float
    predicted: float


def request_bytes(texts: list[str]) -> int:
    """Bytes a request is charged for: its characters and a fixed overhead per item."""
    return sum(len(text) + ITEM_OVERHEAD_BYTES for text in texts)


def decide_bytes(size: int, *, in_flight: int, budget: int) -> Refused | None:
    """Refuse a request of ``size`` bytes that does not fit beside ``in_flight`` others, or never would."""
    if size > budget:
        return Refused("never_fits", budget, size)
    if in_flight + size > budget:
        return Refused("bytes", budget, in_flight + size)
    return None


def decide_time(
    work: Work, load: DeviceLoad, *, max_queue_ms: float, remaining_ms: float, deadline_named: bool = True
) -> Prediction | Refused:
    """Accept or refuse ``work`` on a device under ``load``; times are milliseconds from now.

    ``deadline_named`` is whether the caller gave the deadline; without one the host's own ends a wait that lasts.
    """
    predicted = predict(work, load)
    if predicted.start_ms > max_queue_ms:
        return Refused("queue", max_queue_ms, predicted.start_ms)
    judged = not load.free or (deadline_named and work.known)
    finish_ms = predicted.finish_ms if judged else FLOOR_MS * len(work.group_ms)
    if finish_ms > remaining_ms:
        return Refused("deadline", remaining_ms, finish_ms)
    return predicted
