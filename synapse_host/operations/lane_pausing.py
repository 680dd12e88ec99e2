"""lanes.pause, lanes.resume and lanes.status: give the Neural Engine away for a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from unicodedata import category

from pydantic import StrictInt, StrictStr

from synapse_host.errors import InvalidRequest
from synapse_host.lanes.pausing import PauseControl
from synapse_host.operations.constraints import Params
from synapse_host.operations.quoting import quoted
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object

#: The one scope there is.
SCOPE = "neural_engine"
#: Longest pause: 120 minutes (wire contract section 5).
MOST_MS = 7_200_000
#: Characters of a reason, as many as a name may have: every refusal of the pause repeats it.
MOST_REASON_CHARS = 256
#: What helps who wants another pause, by whether the one there is ends later.
_REMEDIES = {
    True: "resume it first, or wait for its end",
    False: "it is over and waits for another process to give the hardware's lock back",
}


class LanesPauseParams(Params):
    """What to pause, for how many milliseconds, and why."""

    scope: StrictStr
    duration_ms: StrictInt
    reason: StrictStr


class NoParams(Params):
    """Takes nothing."""


@value_object
class LanePausingService:
    """Begins, ends and shows pauses; ``all_lanes`` opens those that nobody has asked for yet, so that all are named."""

    control: PauseControl
    all_lanes: Callable[[], Awaitable[None]]
    module_generation: int
    #: What the worker of the Neural Engine holds; None before there was one.
    residency: Callable[[], dict[str, Any] | None] = lambda: None

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [
            Method("lanes.pause", "mutate", LanesPauseParams, self.pause),
            Method("lanes.resume", "mutate", NoParams, self.resume),
            Method("lanes.status", "query", NoParams, self.status),
        ]

    async def pause(self, params: LanesPauseParams, context: RequestContext) -> Reply:
        """Begin a pause; the answer does not wait for anything to drain."""
        _refuse_unfit(params)
        await self.all_lanes()
        if not self.control.begin(params.duration_ms, params.reason):
            pause = self.control.state.pause
            assert pause is not None
            raise InvalidRequest(
                f"a pause is active already ({pause.reason}); {_REMEDIES[self.control.state.ends_later]}",
                details={"paused_until_ms": pause.until_ms, "phase": str(self.control.state.phase)},
            )
        return self._answer()

    async def resume(self, params: NoParams, context: RequestContext) -> Reply:
        """End the pause now; nothing changes where there is none."""
        self.control.resume()
        return self._answer()

    async def status(self, params: NoParams, context: RequestContext) -> Reply:
        """Where the pause stands."""
        await self.all_lanes()
        return self._answer()

    def _answer(self) -> Reply:
        residency = self.residency()
        shown = {} if residency is None else {"residency": residency}
        return Reply({"module_generation": self.module_generation, **self.control.status(), **shown})


def _refuse_unfit(params: LanesPauseParams) -> None:
    if params.scope != SCOPE:
        raise InvalidRequest(
            f"scope {quoted(params.scope)} is unknown; {SCOPE!r} is the one there is", details={"parameter": "scope"}
        )
    if not 0 < params.duration_ms <= MOST_MS:
        raise InvalidRequest(
            f"duration_ms {params.duration_ms} is not between 1 and {MOST_MS} (120 minutes); give one that is",
            details={"parameter": "duration_ms", "max_duration_ms": MOST_MS},
        )
    if not params.reason.strip():
        raise InvalidRequest(
            f"reason {quoted(params.reason)} is blank; whoever is refused reads it, so say one",
            details={"parameter": "reason"},
        )
    hidden = next((character for character in params.reason if category(character) == "Cc"), None)
    if hidden is not None:
        raise InvalidRequest(
            f"reason holds the control character U+{ord(hidden):04X}, and goes into logs and terminals; leave it out",
            details={"parameter": "reason"},
        )
    if len(params.reason) > MOST_REASON_CHARS:
        raise InvalidRequest(
            f"reason has {len(params.reason)} characters and may have {MOST_REASON_CHARS}, for every refusal repeats "
            "it; shorten it",
            details={"parameter": "reason", "max_reason_chars": MOST_REASON_CHARS},
        )
