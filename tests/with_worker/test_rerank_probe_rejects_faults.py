"""The probe of rerankers against lanes with one planted mistake, in real workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.certification.probe import REFERENCE_BACKEND
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker
from synapse_host.testing.probed_lane import probe_outcome
from synapse_host.testing.workers.faulty_worker import RERANK_FAULTS

pytestmark = pytest.mark.anyio

#: Two positions more than max_tokens, so that a shifted position is still in the table.
MODEL = TinyBertReranker(seed=41, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny", MODEL)
    return tmp_path / "tiny"


# In f32 one is certified end to end.
async def test_a_sound_reranker_is_certified(directory: Path, tmp_path: Path) -> None:
    found = await probe_outcome(directory, tmp_path, "cpu", "bf16", None, task="rerank")
    assert found.status == "certified", found.reason
    assert found.evidence["pairs"]["pairs"] >= 64


async def test_a_planted_fault_is_rejected_in_f32(directory: Path, tmp_path: Path) -> None:
    found = await probe_outcome(directory, tmp_path, REFERENCE_BACKEND, "f32", "perturbed_layer", task="rerank")
    assert found.status == "uncertified"
    assert "logit error" in (found.reason or "")


# The other faults of FAULTS are met by the probe of embeddings in every run; here are those of pairs and heads, and the
# subtlest of the rest.
@pytest.mark.parametrize("fault", [*sorted(RERANK_FAULTS), "tanh_for_erf"])
async def test_a_planted_fault_is_rejected_on_the_cpu_lane_in_bf16(directory: Path, tmp_path: Path, fault: str) -> None:
    found = await probe_outcome(directory, tmp_path, "cpu", "bf16", fault, task="rerank")
    assert found.status == "uncertified"
    assert "magnifying model" in (found.reason or "")


async def test_a_sound_reranker_of_another_family_is_certified(tmp_path: Path) -> None:
    write_model(tmp_path / "tiny", CROSS_ENCODERS["modernbert/mean"])
    found = await probe_outcome(tmp_path / "tiny", tmp_path, "cpu", "bf16", None, task="rerank")
    assert found.status == "certified", found.reason


async def test_a_sound_chat_reranker_is_certified_by_its_probabilities(tmp_path: Path) -> None:
    model = TinyQwen3(34, 32, 1, 4, 2, 10, 48, vocab=517, positions=1000, tied=True)
    write_qwen3(tmp_path / "tiny", model, readout_ids=[40, 41])
    # The chat takes some 400 tokens of a tokenizer without its words.
    found = await probe_outcome(tmp_path / "tiny", tmp_path, "cpu", "f32", None, task="rerank", max_tokens=700)
    assert found.status == "certified", found.reason
    assert found.evidence["pairs"]["max_logit_error"] is None
    assert found.evidence["pairs"]["pairs"] >= 64
