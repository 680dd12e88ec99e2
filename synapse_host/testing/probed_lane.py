"""A lane in the test's own event loop and its probe, its workers sound or with one planted mistake."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from synapse_host.admission.device_turns import DeviceTurns
from synapse_host.certification.gates import Gates
from synapse_host.certification.ledger import Certification
from synapse_host.certification.probe import ProbeSetting, probe_lane
from synapse_host.hookspecs import CheckNumbers, DType, Task
from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.models.load_request import LoadRequest
from synapse_host.models.model_package import resolve_files
from synapse_host.models.model_preparation import prepare_model, read_tokenizer
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.tokenization.pairs import LaneTokenizer

StartWorker = Callable[[RegisteredModel], Awaitable[Worker]]
#: The reference's check of itself, computed by the first probe of this process, as by the first in the life of a host.
_REFERENCE_CHECKS: list[CheckNumbers] = []


async def probe_outcome(
    model_directory: Path,
    home: Path,
    engine: str,
    dtype: DType,
    fault: str | None,
    *,
    task: Task = "embed",
    max_tokens: int = 128,
) -> Certification:
    """What the probe says of the model in ``model_directory`` with ``fault`` planted; ``home`` is for sockets."""
    made = probed_lane(model_directory, home, engine=engine, dtype=dtype, fault=fault, task=task, max_tokens=max_tokens)
    async with made as (lane, setting):
        certification, _ = await probe_lane(lane, "0" * 64, setting, lambda step: None)
        return certification


@asynccontextmanager
async def probed_lane(
    model_directory: Path,
    home: Path,
    *,
    engine: str,
    dtype: DType,
    fault: str | None,
    task: Task = "embed",
    max_tokens: int = 128,
) -> AsyncIterator[tuple[Lane, ProbeSetting]]:
    """The lane, not yet loaded, and the setting of its probe."""
    request = LoadRequest(
        directory=str(model_directory),
        model=("model.safetensors", None),
        tokenizer=("tokenizer.json", None),
        config=("config.json", None),
        engine=engine,
        model_id="lane",
        task=task,
        pooling="mean",
        normalize=True,
        max_tokens=max_tokens,
        dtype=dtype,
        quant="none",
    )
    description = await BackendChoice(home / "cache").for_loading(engine, task)
    model = prepare_model(request, resolve_files(request), description, created_ms=0)
    async with anyio.create_task_group() as tasks:
        start = _starter(home, tasks, fault)

        async def tokenizer(model: RegisteredModel) -> LaneTokenizer:
            return read_tokenizer(model)

        lane = Lane(model, LaneRuntime(start, tokenizer, DeviceTurns(), tasks, time.monotonic))
        yield lane, ProbeSetting(start, Gates(0.999, 0.9), 0, "test", 1, lambda: 0, _REFERENCE_CHECKS)
        await lane.close()
        tasks.cancel_scope.cancel()


def _starter(directory: Path, tasks: TaskGroup, fault: str | None) -> StartWorker:
    """Start the reference as it is and every other worker with ``fault`` planted."""
    numbers = iter(range(1000))

    async def start(model: RegisteredModel) -> Worker:
        spoiled = fault is not None and not model.model_id.endswith("-reference")
        worker_id = f"test-{next(numbers)}"
        module = "synapse_host.testing.workers.faulty_worker"
        spec = WorkerSpec(
            backend=model.backend,
            worker_id=worker_id,
            socket_path=worker_socket_path(directory, worker_id),
            command=[sys.executable, "-m", module, str(fault), model.backend] if spoiled else None,
        )
        return await Worker.start(spec, tasks)

    return start
