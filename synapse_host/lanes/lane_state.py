"""The life cycle of one lane as a pure machine.

unloaded → loading → ready → unloading → unloaded, with two turns: a load may fail (failed, which the next request
leaves by loading again) and a ready lane's worker may die (unloaded). Nothing else is a legal move.
"""

from __future__ import annotations

from enum import StrEnum


class LaneState(StrEnum):
    """Where a lane stands."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


class LaneEvent(StrEnum):
    """What may happen to a lane."""

    LOAD = "load"
    LOADED = "loaded"
    LOAD_FAILED = "load_failed"
    WORKER_DIED = "worker_died"
    UNLOAD = "unload"
    UNLOADED = "unloaded"


_MOVES: dict[tuple[LaneState, LaneEvent], LaneState] = {
    (LaneState.UNLOADED, LaneEvent.LOAD): LaneState.LOADING,
    (LaneState.FAILED, LaneEvent.LOAD): LaneState.LOADING,
    (LaneState.LOADING, LaneEvent.LOADED): LaneState.READY,
    (LaneState.LOADING, LaneEvent.LOAD_FAILED): LaneState.FAILED,
    (LaneState.READY, LaneEvent.WORKER_DIED): LaneState.UNLOADED,
    (LaneState.READY, LaneEvent.UNLOAD): LaneState.UNLOADING,
    (LaneState.FAILED, LaneEvent.UNLOAD): LaneState.UNLOADING,
    (LaneState.UNLOADED, LaneEvent.UNLOAD): LaneState.UNLOADING,
    (LaneState.UNLOADING, LaneEvent.UNLOADED): LaneState.UNLOADED,
    (LaneState.UNLOADING, LaneEvent.WORKER_DIED): LaneState.UNLOADING,
}


class IllegalMove(RuntimeError):
    """An event arrived that the state does not allow; a defect of the host, never of a caller."""


def next_state(state: LaneState, event: LaneEvent) -> LaneState:
    """The state after ``event``; raises ``IllegalMove`` naming both."""
    try:
        return _MOVES[state, event]
    except KeyError:
        raise IllegalMove(f"lane event {event} is not allowed in state {state}") from None
