"""Plays the cases of ``misbehaviour_cases`` on a real lane: what its caller gets, its strikes, and what is left.

Each case gets a misbehaving worker and, after it, a well-behaved one: the host must serve the next request from that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from synapse_host.errors import SynapseError
from synapse_host.supervision.refusals import WorkerRefusal, to_synapse_error
from synapse_host.supervision.silence import SilenceWindows
from synapse_host.supervision.socket_stream import WorkerListener
from synapse_host.supervision.transport import Listen
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.process_watch import is_running, wait_until_gone
from synapse_host.testing.workers.misbehaviour_cases import LANE_UNLOAD, START, STOP, Case
from synapse_host.testing.workers.running_worker import (
    PATIENCE_S,
    generate,
    misbehaving_spec,
    rerank,
    rerank_sequences,
    stub_spec,
)
from synapse_host.testing.workers.stub_lane import MODEL_REF, StubLane, stub_lane
from synapse_host.values import value_object
from synapse_host.worker_protocol.messages import (
    REQUESTS,
    AdmitShape,
    EvictShape,
    Message,
    PackedAdmit,
    PackedEvict,
    Ping,
    SelfCheck,
    Unload,
)

#: Cases played at once: most of each is waiting for a child.
_AT_ONCE = 4
#: Seconds for what is meant to take too long; what is not meant to has far longer.
_BRIEF_S = 0.6
_BRIEF_STOP_S = 0.2
_LONG_OPERATIONS = (
    *("LOAD", "ANE_ADMIT_SHAPE", "ANE_EVICT_SHAPE", "PACKED_ADMIT", "PACKED_EVICT", "UNLOAD"),
    LANE_UNLOAD,
)


@value_object
class _BriefIn(SilenceWindows):
    """The windows as they are in one ``operation``; what a worker answers before it is not meant to take too long."""

    operation: str = ""

    def window(self, operation: str, engine: str, phase: str = "setup") -> float:
        if operation != self.operation:
            return PATIENCE_S
        return SilenceWindows.window(self, operation, engine, phase)


async def _in_turn(worker: Worker, *messages: Message) -> None:
    for message in messages:
        await worker.request(message)


#: What a lane cannot be asked for is asked of its worker. LOAD and EMBED_BATCH go through the lane.
_ASKS: dict[str, Callable[[Worker], Awaitable[object]]] = {
    "RERANK": lambda worker: rerank(worker, MODEL_REF, [1], [2], [3]),
    "RERANK_SEQUENCES": lambda worker: rerank_sequences(worker, MODEL_REF, [2], [3]),
    "GENERATE": lambda worker: generate(worker, MODEL_REF, [1, 2], 3),
    "ANE_ADMIT_SHAPE": lambda worker: worker.request(AdmitShape("a", MODEL_REF, 128)),
    "ANE_EVICT_SHAPE": lambda worker: _in_turn(
        worker, AdmitShape("a", MODEL_REF, 128), EvictShape("e", MODEL_REF, 128)
    ),
    "PACKED_ADMIT": lambda worker: worker.request(PackedAdmit("a", MODEL_REF, 256)),
    "PACKED_EVICT": lambda worker: _in_turn(worker, PackedAdmit("a", MODEL_REF, 256), PackedEvict("e", MODEL_REF, 256)),
    "SELF_CHECK": lambda worker: worker.request(SelfCheck("s", MODEL_REF)),
    "PING": lambda worker: worker.request(Ping("p")),
    "UNLOAD": lambda worker: worker.request(Unload("u", MODEL_REF)),
    STOP: lambda worker: worker.stop(drain_s=_BRIEF_STOP_S, terminate_s=_BRIEF_STOP_S),
}


@value_object
class Outcome:
    """What came of ``case``: the caller's error, and what was found afterwards; ``broken`` when it could not be played.

    ``served`` says that the next request on a fresh worker succeeded, ``left`` what was left that should not be.
    """

    case: Case
    error: SynapseError | None = None
    strikes: int = -1
    served: bool = False
    left: str = ""
    broken: str = ""

    @property
    def problem(self) -> str | None:
        """How it differs from what the case expects; None when it does not."""
        if self.broken or self.left or not self.served:
            return self.broken or self.left or "the next request was not served"
        code, reason = self.error and self.error.code, ((self.error and self.error.details) or {}).get("reason")
        if (code, reason) != (self.case.code, self.case.reason):
            return f"the caller got {code} ({reason}), expected {self.case.code} ({self.case.reason}): {self.error!r}"
        if self.error is not None and self.case.said not in self.error.message:
            return f"{self.error.message!r} does not say {self.case.said!r}"
        return None if self.strikes == self.case.strikes else f"{self.strikes} strikes, expected {self.case.strikes}"

    @property
    def shown(self) -> str:
        """The cell of a table: why the request ended, and the strikes after it."""
        if self.problem is not None:
            return f"WRONG: {self.problem}"
        ended = "served" if self.case.code is None else str(self.case.reason)
        return f"{ended}, {self.strikes}"


async def play_all(asked: Iterable[Case], folder: Path, listen: Listen = WorkerListener) -> list[Outcome]:
    """Play every case, over one transport, in a folder of its own below ``folder``; outcomes in the cases' order."""
    outcomes: dict[Case, Outcome] = {}
    turns = anyio.CapacityLimiter(_AT_ONCE)

    async def play_in_turn(place: int, case: Case) -> None:
        async with turns:
            outcomes[case] = await play(case, folder / str(place), listen)

    asked = list(asked)
    async with anyio.create_task_group() as tasks:
        for place, case in enumerate(asked):
            tasks.start_soon(play_in_turn, place, case)
    return [outcomes[case] for case in asked]


async def play(case: Case, folder: Path, listen: Listen = WorkerListener) -> Outcome:
    """Play one case."""
    try:
        with anyio.fail_after(PATIENCE_S):
            specs = [replace(spec, listen=listen) for spec in (_spec(case, folder), stub_spec(folder))]
            async with stub_lane(*specs) as stub:
                return await _play(case, stub)
    except Exception as fault:
        return Outcome(case, broken=f"{type(fault).__name__}: {fault}")


async def _play(case: Case, stub: StubLane) -> Outcome:
    error = await _error_of(case, stub)
    if stub.workers and not case.lives:
        await stub.settled()
    strikes, old = stub.lane.strikes.count, list(stub.workers)
    left = "" if case.lives else "".join(f"worker {worker.pid} is left" for worker in old if not _gone(worker.pid))
    await _ask(case.operation if case.operation in _ASKS and case.operation != STOP else "EMBED_BATCH", stub)
    if not case.lives and old and stub.worker in old:
        left += "the next request went to the worker that misbehaved"
    if stub.worker.spec.socket_path.exists():
        left += f"{stub.worker.spec.socket_path} is left"
    return Outcome(case, error, strikes, served=is_running(stub.worker.pid), left=left)


async def _error_of(case: Case, stub: StubLane) -> SynapseError | None:
    try:
        await _ask(case.operation, stub)
        if case.late:
            await stub.worker.request(Ping("late"))
    except WorkerRefusal as refusal:
        return to_synapse_error(refusal)
    except SynapseError as error:
        return error
    return None


async def _ask(operation: str, stub: StubLane) -> None:
    await stub.lane.load()
    if operation == "EMBED_BATCH":
        await stub.embed([1, 2], [3])
    elif operation == LANE_UNLOAD:
        await stub.lane.unload()
    elif operation in _ASKS:
        await _ASKS[operation](stub.worker)


def _spec(case: Case, folder: Path) -> WorkerSpec:
    on = "UNLOAD" if case.operation == LANE_UNLOAD else case.operation
    changes: dict[str, Any] = {}
    if case.operation == START and case.reason == "handshake_timeout":
        changes["accept_deadline_s" if case.kind == "never_connects" else "hello_deadline_s"] = _BRIEF_S
    if case.kind == "other_kernels":
        changes |= {"expected_manifest": "aa", "expected_kernel": "r1"}
    if case.kind == "silence":
        brief = (_BRIEF_S, PATIENCE_S) if case.operation in _LONG_OPERATIONS else (PATIENCE_S, _BRIEF_S)
        changes["silence"] = _BriefIn(*brief, REQUESTS[on].OPERATION)
    return replace(misbehaving_spec(folder, case.kind, on=on), **changes)


def _gone(pid: int) -> bool:
    return wait_until_gone(pid, PATIENCE_S)
