"""The decision to take or refuse one request, as arithmetic without I/O.

A request is accepted only if its bytes fit beside those already in flight and it is predicted to start within its
queue bound and to finish within its deadline. The order of the three checks is fixed: bytes, start, finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Bytes counted for an item beside its text: id, token counts and row bookkeeping.
ITEM_OVERHEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class Request:
    """What one request needs. Times are milliseconds from now."""

    bytes: int
    max_queue_ms: float
    remaining_ms: float


@dataclass(frozen=True, slots=True)
class Load:
    """What the lane carries at the moment of the decision."""

    bytes_in_flight: int
    byte_budget: int
    waiting: int
    permit_free: bool
    estimate_ms: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal with the numbers that made it."""

    reason: Literal["never_fits", "bytes", "queue", "deadline"]
    limit: float
    predicted: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """Acceptance, with the predicted start and finish in milliseconds from now."""

    start_ms: float
    finish_ms: float


def request_bytes(texts: list[str]) -> int:
    """Bytes a request is charged for: its characters and a fixed overhead per item."""
    return sum(len(text) + ITEM_OVERHEAD_BYTES for text in texts)


def decide(request: Request, load: Load) -> Admitted | Refused:
    """Accept or refuse ``request`` under ``load``."""
    if request.bytes > load.byte_budget:
        return Refused("never_fits", load.byte_budget, request.bytes)
    if load.bytes_in_flight + request.bytes > load.byte_budget:
        return Refused("bytes", load.byte_budget, load.bytes_in_flight + request.bytes)
    start = 0.0 if load.permit_free else (load.waiting + 1) * load.estimate_ms
    if start > request.max_queue_ms:
        return Refused("queue", request.max_queue_ms, start)
    finish = start + load.estimate_ms
    if finish > request.remaining_ms:
        return Refused("deadline", request.remaining_ms, finish)
    return Admitted(start, finish)
