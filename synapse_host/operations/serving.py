"""Steps that every method served by a lane takes, in the order a request takes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from synapse_host.admission.gate import Budget
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.errors import DeadlineExceeded, InvalidRequest
from synapse_host.hookspecs import Task
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.resolution import resolve_lane
from synapse_host.operations.constraints import Constraints
from synapse_host.time_limits import TimeLimits

Answer = TypeVar("Answer")

#: Texts longer than this many characters together are tokenised off the event loop: at 1.5 M tokens/s they would
#: hold it for more than a millisecond.
INLINE_TOKENIZING_CHARS = 4096


def refuse_longest(items: Sequence[str], texts: Sequence[str], limit: int) -> None:
    """Refuse, naming its item, a text of more than ``limit`` characters.

    A text is tokenised whole to be counted, which takes some 250 bytes of memory a character.
    """
    for item, text in zip(items, texts, strict=True):
        if len(text) > limit:
            raise InvalidRequest(
                f"item {item!r} has {len(text)} characters and a text may have {limit}; split it",
                details={"item_id": item, "characters": len(text), "max_text_chars": limit},
            )


def serving_lane(
    lanes: LaneTable,
    ledger: CertificationLedger,
    *,
    task: Task,
    model: str | None,
    constraints: Constraints,
    table_epoch: int,
) -> Lane:
    """The lane that may answer; raises what ``available_lane`` and a missing certification raise."""
    lane = available_lane(lanes, task=task, model=model, constraints=constraints, table_epoch=table_epoch)
    ledger.require_certified(lane.model)
    return lane


def available_lane(
    lanes: LaneTable, *, task: Task, model: str | None, constraints: Constraints, table_epoch: int
) -> Lane:
    """The lane asked for, certified or not; raises what ``resolve_lane`` and a quarantine raise."""
    lane = resolve_lane(
        lanes,
        task=task,
        model=model,
        required_fingerprint=constraints.fingerprint,
        required_epoch=constraints.required_epoch,
        table_epoch=table_epoch,
    )
    lane.refuse_quarantined()
    return lane


async def within_deadline(
    deadlines: TimeLimits,
    clock: Callable[[], float],
    budget: Budget,
    lane: Lane,
    compute: Callable[[], Awaitable[Answer]],
    *,
    done: str = "answered",
    remedy: str = "raise deadline_ms",
) -> Answer:
    """What ``compute`` answers; raises ``DeadlineExceeded`` when the request's time is up first.

    ``done`` is what the model had not done by then, and ``remedy`` what to do about it, for the message.
    """
    remaining = budget.remaining_ms(clock())
    try:
        with deadlines.limit(max(remaining, 0.0) / 1000):
            return await compute()
    except TimeoutError:
        raise DeadlineExceeded(
            f"deadline_ms of {budget.deadline_ms} passed before model {lane.model.model_id!r} {done}; {remedy}"
        ) from None
