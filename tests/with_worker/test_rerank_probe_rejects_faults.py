"""The probe of rerankers against lanes with one planted mistake, in real workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synapse_host.certification.probe import REFERENCE_BACKEND
from synapse_host.hookspecs import DType
from synapse_host.testing.faulty_worker import EAGER_ONLY, FAULTS, RERANK_FAULTS
from synapse_host.testing.probed_lane import probe_outcome
from synapse_host.testing.tiny_models import write_model
from synapse_host.testing.tiny_rerankers import TinyBertReranker

pytestmark = pytest.mark.anyio

#: Two positions more than max_tokens, so that a shifted position is still in the table.
MODEL = TinyBertReranker(seed=41, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130)
#: The pooling of embeddings has no part in a score, and tiny models do not overflow.
PLANTED = (set(FAULTS) | set(RERANK_FAULTS)) - {"swapped_pooling", "f16_overflow"}


#: Run every time; the others, which the probe of embeddings meets in every run, are slow.
ALWAYS = set(RERANK_FAULTS) | {"perturbed_layer"}


def faults(names: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.slow) for name in sorted(names)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny", MODEL)
    return tmp_path / "tiny"


@pytest.mark.parametrize(("engine", "dtype"), [("cpu", "f32"), ("cpu", "bf16")])
async def test_a_sound_reranker_is_certified(directory: Path, tmp_path: Path, engine: str, dtype: DType) -> None:
    found = await probe_outcome(directory, tmp_path, engine, dtype, None, task="rerank")
    assert found.status == "certified", found.reason
    assert found.evidence["pairs"]["pairs"] >= 64


@pytest.mark.parametrize("fault", faults(PLANTED - set(RERANK_FAULTS)))
async def test_a_planted_fault_is_rejected_in_f32(directory: Path, tmp_path: Path, fault: str) -> None:
    found = await probe_outcome(directory, tmp_path, REFERENCE_BACKEND, "f32", fault, task="rerank")
    assert found.status == "uncertified"


@pytest.mark.parametrize("fault", faults(PLANTED - EAGER_ONLY))
async def test_a_planted_fault_is_rejected_on_the_cpu_lane_in_bf16(directory: Path, tmp_path: Path, fault: str) -> None:
    found = await probe_outcome(directory, tmp_path, "cpu", "bf16", fault, task="rerank")
    assert found.status == "uncertified"
