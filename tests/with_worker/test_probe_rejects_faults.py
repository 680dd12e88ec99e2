"""The probe against lanes with one planted mistake, in real workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.certification.probe import REFERENCE_BACKEND
from synapse_host.hookspecs import DType
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.probed_lane import probe_outcome as outcome
from synapse_host.testing.workers.faulty_worker import EAGER_ONLY, FAULTS

pytestmark = pytest.mark.anyio

#: Faults that only the backend's check of itself sees in bf16, which is the same whatever model the lane has: one of
#: them is planted below where that is the hardest, in a model that it hardly changes.
SUBTLE = ("tanh_for_erf", "wrong_eps")

TINY = TinyBert(
    seed=11, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130
)  # two more than max_tokens, so that a shifted position is still in the table


def write_tiny(directory: Path, *, wide: float = 1.0) -> Path:
    """A tiny model; ``wide`` scales the last matrix of each block, which the norm after it takes back."""
    model = directory / "tiny"
    model.mkdir()
    write_model(model, TINY, "f32")
    if wide != 1.0:
        from synapse_host.testing.models.tiny_models import write_safetensors

        tensors = TINY.tensors()
        tensors = {name: t * wide if name.endswith(".output.dense.weight") else t for name, t in tensors.items()}
        write_safetensors(model / "model.safetensors", tensors, "f32")
    return model


# The lanes that faults are planted in below; cpu lanes in f32 are certified end to end.
@pytest.mark.parametrize(("engine", "dtype"), [(REFERENCE_BACKEND, "f32"), ("cpu", "bf16")])
async def test_a_sound_lane_is_certified(tmp_path: Path, engine: str, dtype: DType) -> None:
    found = await outcome(write_tiny(tmp_path), tmp_path, engine, dtype, None)
    assert found.status == "certified", found.reason


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"f16_overflow"}))
async def test_a_planted_fault_is_rejected_in_f32(tmp_path: Path, fault: str) -> None:
    found = await outcome(write_tiny(tmp_path), tmp_path, REFERENCE_BACKEND, "f32", fault)
    assert found.status == "uncertified"
    assert "cosine" in (found.reason or "")


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - EAGER_ONLY - set(SUBTLE)))
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
async def test_a_subtle_fault_in_the_real_model_is_rejected_in_bf16(tmp_path: Path) -> None:
    found = await outcome(minilm_directory(), tmp_path, "cpu", "bf16", "tanh_for_erf")
    assert found.status == "uncertified"
    assert "magnifying model" in (found.reason or "")
