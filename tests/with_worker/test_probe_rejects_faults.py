"""The probe against lanes with one planted mistake, in real workers."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup

from synapse_host.certification.gates import Gates
from synapse_host.certification.ledger import Certification
from synapse_host.certification.probe import REFERENCE_BACKEND, ProbeSetting, probe_lane
from synapse_host.hookspecs import DType
from synapse_host.lanes.backend_choice import BackendChoice
from synapse_host.lanes.device_turns import DeviceTurns
from synapse_host.lanes.lane import Lane, LaneRuntime
from synapse_host.lanes.load_request import LoadRequest
from synapse_host.lanes.model_package import resolve_files
from synapse_host.lanes.model_preparation import prepare_model, read_tokenizer
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.socket_paths import worker_socket_path
from synapse_host.supervision.worker import Worker
from synapse_host.supervision.worker_spec import WorkerSpec
from synapse_host.testing.faulty_worker import EAGER_ONLY, FAULTS
from synapse_host.testing.minilm import minilm_directory
from synapse_host.testing.tiny_models import TinyBert, write_model

pytestmark = pytest.mark.anyio

TINY = TinyBert(
    seed=11, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130
)  # two more than max_tokens, so that a shifted position is still in the table
StartWorker = Callable[[RegisteredModel], Awaitable[Worker]]


def write_tiny(directory: Path, *, wide: float = 1.0) -> Path:
    """A tiny model; ``wide`` scales the last matrix of each block, which the norm after it takes back."""
    model = directory / "tiny"
    model.mkdir()
    write_model(model, TINY, "f32")
    if wide != 1.0:
        from synapse_host.testing.tiny_models import write_safetensors

        tensors = TINY.tensors()
        tensors = {name: t * wide if name.endswith(".output.dense.weight") else t for name, t in tensors.items()}
        write_safetensors(model / "model.safetensors", tensors, "f32")
    return model


def starter(directory: Path, tasks: TaskGroup, fault: str | None) -> StartWorker:
    """Start the reference as it is and every other worker with ``fault`` planted."""
    numbers = iter(range(1000))

    async def start(model: RegisteredModel) -> Worker:
        spoiled = fault is not None and not model.model_id.endswith("-reference")
        worker_id = f"test-{next(numbers)}"
        module = "synapse_host.testing.faulty_worker"
        spec = WorkerSpec(
            backend=model.backend,
            worker_id=worker_id,
            socket_path=worker_socket_path(directory, worker_id),
            command=[sys.executable, "-m", module, str(fault), model.backend] if spoiled else None,
        )
        return await Worker.start(spec, tasks)

    return start


@asynccontextmanager
async def lane_of(
    model_directory: Path, tmp_path: Path, *, engine: str, dtype: DType, fault: str | None
) -> AsyncIterator[tuple[Lane, ProbeSetting]]:
    request = LoadRequest(
        directory=str(model_directory),
        model=("model.safetensors", None),
        tokenizer=("tokenizer.json", None),
        config=("config.json", None),
        engine=engine,
        model_id="lane",
        task="embed",
        pooling="mean",
        normalize=True,
        max_tokens=128,
        dtype=dtype,
        quant="none",
    )
    description = await BackendChoice(tmp_path / "cache").for_loading(engine, "embed")
    model = prepare_model(request, resolve_files(request), description, created_ms=0)
    async with anyio.create_task_group() as tasks:
        start = starter(tmp_path, tasks, fault)

        async def tokenizer(model: RegisteredModel):  # type: ignore[no-untyped-def]
            return read_tokenizer(model)

        lane = Lane(model, LaneRuntime(start, tokenizer, DeviceTurns(), tasks, time.monotonic))
        yield lane, ProbeSetting(start, Gates(0.999, 0.9), 0, "test", 1, lambda: 0)
        await lane.close()
        tasks.cancel_scope.cancel()


async def outcome(model_directory: Path, tmp_path: Path, engine: str, dtype: DType, fault: str | None) -> Certification:
    async with lane_of(model_directory, tmp_path, engine=engine, dtype=dtype, fault=fault) as (lane, setting):
        certification, _ = await probe_lane(lane, "0" * 64, setting, lambda step: None)
        return certification


@pytest.mark.parametrize(("engine", "dtype"), [(REFERENCE_BACKEND, "f32"), ("cpu", "f32"), ("cpu", "bf16")])
async def test_a_sound_lane_is_certified(tmp_path: Path, engine: str, dtype: DType) -> None:
    found = await outcome(write_tiny(tmp_path), tmp_path, engine, dtype, None)
    assert found.status == "certified", found.reason


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"f16_overflow"}))
async def test_a_planted_fault_is_rejected_in_f32(tmp_path: Path, fault: str) -> None:
    found = await outcome(write_tiny(tmp_path), tmp_path, REFERENCE_BACKEND, "f32", fault)
    assert found.status == "uncertified"
    assert "cosine" in (found.reason or "")


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - EAGER_ONLY))
async def test_a_planted_fault_is_rejected_on_the_cpu_lane_in_bf16(tmp_path: Path, fault: str) -> None:
    found = await outcome(write_tiny(tmp_path), tmp_path, "cpu", "bf16", fault)
    assert found.status == "uncertified"
    assert "cosine" in (found.reason or "")


async def test_f16_overflow_is_rejected_as_output_that_is_no_vector(tmp_path: Path) -> None:
    model = write_tiny(tmp_path, wide=1e6)
    sound = await outcome(model, tmp_path, REFERENCE_BACKEND, "f32", None)
    assert sound.status == "certified", sound.reason
    found = await outcome(model, tmp_path, REFERENCE_BACKEND, "f32", "f16_overflow")
    assert found.status == "uncertified"
    assert "non_finite_output" in (found.reason or "")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["wrong_eps", "tanh_for_erf"])
async def test_a_subtle_fault_in_the_real_model_is_rejected_in_bf16(tmp_path: Path, fault: str) -> None:
    found = await outcome(minilm_directory(), tmp_path, "cpu", "bf16", fault)
    assert found.status == "uncertified"
    assert "magnifying model" in (found.reason or "")
