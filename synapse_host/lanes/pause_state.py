"""A pause of the lanes of one kind of hardware, as a state machine: what may happen, and what is said of it. Pure.

Clocks are injected: ``ends_at`` is monotonic seconds, ``until_ms`` the time of day that is told. The hardware is free
only in phase ``paused``: every lane emptied, its worker confirmed to be gone, and the lock given back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from synapse_host.errors import EXCEPTIONS, SynapseError
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.values import value_object

#: What an ended pause waits for, as a rule.
_OTHERS_LOCK = "another process gives the hardware's lock back"
#: Least wait suggested to who meets a pause, also where it is over but the lock is still another's (wire contract).
LEAST_RETRY_MS = 1000


class PausePhase(StrEnum):
    """Where a pause stands."""

    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    DRAIN_FAILED = "drain_failed"
    WAITING_FOR_LOCK = "waiting_for_lock"


@value_object
class DrainFault:
    """Why the hardware is not free; ``lane_id`` is None where it is the lock of the whole machine."""

    lane_id: str | None
    stage: str
    code: str
    message: str

    def to_wire(self) -> dict[str, Any]:
        """The ``drain_error`` of ``lanes.status``."""
        return {"lane_id": self.lane_id, "stage": self.stage, "code": self.code, "message": self.message}


@value_object
class Pause:
    """What was asked for."""

    reason: str
    until_ms: int
    ends_at: float


class PauseState:
    """One kind of hardware: running, or somewhere in a pause. Every method says nothing and raises nothing."""

    def __init__(self) -> None:
        self.phase = PausePhase.RUNNING
        self.pause: Pause | None = None
        self.fault: DrainFault | None = None
        self._lanes_failed = False
        self._lock_given_back = False
        self._waits_for = _OTHERS_LOCK

    @property
    def active(self) -> bool:
        """Whether lanes are paused, in whatever phase."""
        return self.phase is not PausePhase.RUNNING

    @property
    def ends_later(self) -> bool:
        """Whether there is a pause whose end has not come."""
        return self.active and self.phase is not PausePhase.WAITING_FOR_LOCK

    @property
    def hardware_free(self) -> bool:
        """Whether another process may have the hardware."""
        return self.phase is PausePhase.PAUSED

    @property
    def may_give_lock_back(self) -> bool:
        """Whether every lane is known to be empty; a failed unload is no confirmed exit."""
        return self._draining and not self._lanes_failed

    def begin(self, pause: Pause) -> bool:
        """Pause; False, and nothing changed, during another pause."""
        if self.active:
            return False
        self.phase, self.pause = PausePhase.DRAINING, pause
        return True

    def lane_failed(self, fault: DrainFault) -> None:
        """A lane could not be emptied."""
        if self._draining:
            self._lanes_failed = True
            self.phase, self.fault = PausePhase.DRAIN_FAILED, fault

    def lock_stuck(self, fault: DrainFault) -> None:
        """The lock could not be given back; that is tried again."""
        if self.may_give_lock_back:
            self.phase, self.fault = PausePhase.DRAIN_FAILED, fault

    def lock_given_back(self) -> None:
        """Every lane is empty and the lock is given back: the hardware is free."""
        if self.may_give_lock_back:
            self._lock_given_back = True
            self.phase, self.fault = PausePhase.PAUSED, None

    def end(self) -> None:
        """The time is up, or an operator wants no more of it: nothing is waited for but the lock."""
        if self.phase is PausePhase.PAUSED or self._lock_given_back:
            self.phase, self.fault = PausePhase.WAITING_FOR_LOCK, None
        elif self.active:
            self._run()

    def lock_refused(self, waits_for: str = _OTHERS_LOCK) -> None:
        """The lock could not be taken; requests are told what it ``waits_for``."""
        self._waits_for = waits_for

    def lock_taken(self) -> None:
        """The lock is ours again."""
        if self.phase is PausePhase.WAITING_FOR_LOCK:
            self._run()

    def refusal(self, model: RegisteredModel, now: float) -> SynapseError:
        """What a request for ``model`` is told at monotonic ``now``, while there is a pause."""
        pause = self.pause
        assert pause is not None, "only a pause refuses"
        left_ms = round((pause.ends_at - now) * 1000)
        over = self.phase is PausePhase.WAITING_FOR_LOCK
        return EXCEPTIONS["lane_paused"](
            f"model {model.model_id!r} is paused by an operator ({pause.reason}); "
            + (f"it comes back when {self._waits_for}" if over else f"{left_ms} ms are left"),
            details={
                "lane_id": model.model_id,
                "fingerprint": model.fingerprint,
                "paused_until_ms": pause.until_ms,
                "reason": pause.reason,
            },
            retry_after_ms=LEAST_RETRY_MS if over else max(LEAST_RETRY_MS, left_ms),
        )

    def to_wire(self, lane_ids: list[str]) -> dict[str, Any]:
        """The status of wire contract section 5; what belongs to a pause is left out while there is none."""
        if self.pause is None:
            return {"phase": str(self.phase), "hardware_free": False, "lane_ids": []}
        status: dict[str, Any] = {
            "paused_until_ms": self.pause.until_ms,
            "reason": self.pause.reason,
            "lane_ids": lane_ids,
            "phase": str(self.phase),
            "hardware_free": self.hardware_free,
        }
        if self.phase is PausePhase.WAITING_FOR_LOCK:
            status["comes_back_when"] = self._waits_for
        if self.fault is not None:
            status["drain_error"] = self.fault.to_wire()
        return status

    @property
    def _draining(self) -> bool:
        return self.phase in (PausePhase.DRAINING, PausePhase.DRAIN_FAILED)

    def _run(self) -> None:
        self.phase, self.pause, self.fault = PausePhase.RUNNING, None, None
        self._lanes_failed = self._lock_given_back = False
