"""A real lane on stub workers: real processes, sockets and strikes, with no model file and no engine behind them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import anyio
import anyio.lowlevel

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.hookspecs import BatchPolicy
from synapse_host.identity.numeric_profile import EngineIdentity
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.lane_state import LaneState
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.workers.running_worker import PATIENCE_S, unpacked_floats

#: The reference a stub gives to the one model of its life.
MODEL_REF = "stub-1"


def stub_model() -> RegisteredModel:
    """A model of which a stub worker asks nothing."""
    empty: dict[str, Any] = {item.name: "" for item in fields(RegisteredModel)}
    said = {
        "model_id": "stub",
        "task": "embed",
        "pooling": "mean",
        "normalize": True,
        "max_tokens": 512,
        "vocab_size": 1000,
    }
    parts = {"engine": EngineIdentity("stub-engine", "1"), "batch": BatchPolicy(8, 4096)}
    return RegisteredModel(**{**empty, **said, **parts})


@dataclass(slots=True)
class StubLane:
    """``lane`` starts its workers from ``specs`` in turn, the last one ever again; ``workers`` are those started."""

    lane: Lane
    specs: list[WorkerSpec]
    workers: list[Worker] = field(default_factory=list)

    @property
    def worker(self) -> Worker:
        """The worker started last."""
        return self.workers[-1]

    async def embed(self, *rows: Sequence[int]) -> list[float]:
        """Load if need be and embed ``rows`` of token ids, as one request; all their components in one list."""
        with self.lane.lease():
            await self.lane.load()
            _, data = await self.lane.embed(rows, [str(place) for place in range(len(rows))])
        return unpacked_floats(data)

    async def pulse(self) -> None:
        """Take the worker's pulse and wait for it."""
        before = self.lane.health.pulse
        self.lane.refresh_health()
        await until(lambda: self.lane.health.pulse is not before)

    async def settled(self) -> None:
        """Wait until the lane has noticed that its worker is gone; raises ``TimeoutError``."""
        with anyio.fail_after(PATIENCE_S):
            await self.worker.closed.wait()
        await until(lambda: self.lane.state is not LaneState.READY)


async def until(condition: Callable[[], object]) -> None:
    """Turn the loop until ``condition`` holds; raises ``TimeoutError``. For what happens within milliseconds."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def stub_lane(
    *specs: WorkerSpec, clock: Callable[[], float] = time.monotonic, **runtime: Any
) -> AsyncIterator[StubLane]:
    """An unloaded lane on workers of ``specs``; its last worker is stopped at the end.

    ``runtime`` holds further fields of its ``LaneRuntime``.
    """
    started: list[Worker] = []
    waiting = list(specs)

    async def start(model: RegisteredModel) -> Worker:
        spec = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        started.append(await Worker.start(spec, tasks))
        return started[-1]

    async def no_tokenizer(model: RegisteredModel) -> Any:
        return None

    async with anyio.create_task_group() as tasks:
        lane = Lane(stub_model(), LaneRuntime(start, no_tokenizer, DeviceTurns(), tasks, clock, **runtime))
        try:
            yield StubLane(lane, waiting, started)
        finally:
            with anyio.CancelScope(shield=True):
                await lane.close()
            tasks.cancel_scope.cancel()
