"""A probe checks the backend itself, in real workers: what it keeps, and whose name a planted fault gets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from synapse_host.certification.engine_check_run import check_engine
from synapse_host.hookspecs import DType
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.ops.tensor_ops import OP_NAMES
from synapse_host.supervision.worker import Worker
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.probed_lane import probe_outcome, probed_lane

pytestmark = pytest.mark.anyio

TINY = TinyBert(seed=11, hidden=48, layers=2, heads=4, intermediate=96, vocab=120, positions=130)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny", TINY)
    return tmp_path / "tiny"


async def test_a_sound_backend_leaves_its_figures_in_the_evidence(model: Path, tmp_path: Path) -> None:
    found = await probe_outcome(model, tmp_path, "cpu", "f32", None)
    assert found.status == "certified", found.reason
    engine = found.evidence["engine"]
    assert engine["operations"] == len(OP_NAMES)
    assert engine["failed"] == []
    assert 0 < max(engine["shares"].values()) < 1
    assert engine["families"]["bert vectors"] > 0.999999


@pytest.mark.parametrize(
    ("fault", "dtype", "operation"),
    [
        ("wrong_eps", "bf16", "layer_norm"),
        ("tanh_for_erf", "f32", "linear"),
        ("shifted_positions", "f32", "positions"),
        ("swapped_pooling", "f32", "mean_rows"),
        ("transposed_qk", "bf16", "attention"),
    ],
)
async def test_a_planted_fault_is_named_after_its_operation(
    model: Path, tmp_path: Path, fault: str, dtype: DType, operation: str
) -> None:
    async with probed_lane(model, tmp_path, engine="cpu", dtype=dtype, fault=fault) as (lane, setting):
        findings = await check_engine(lane.model, setting)
    assert findings is not None
    assert findings.missed[0].startswith(f"operation {operation} (")


async def test_the_reference_is_computed_once_for_all_probes(model: Path, tmp_path: Path) -> None:
    async with probed_lane(model, tmp_path, engine="reference", dtype="f32", fault=None) as (lane, setting):
        started = []

        async def counted(asked: RegisteredModel) -> Worker:
            started.append(asked.model_id)
            return await start(asked)

        start = setting.start_worker
        # Its own list: that of the other tests of this process may hold the reference's figures already.
        fresh = replace(setting, start_worker=counted, reference_checks=[])
        for _ in range(2):
            findings = await check_engine(lane.model, fresh)
            assert findings is not None
            assert findings.missed == []
    assert started == ["lane-magnifier", "lane-magnifier-reference", "lane-magnifier"]
