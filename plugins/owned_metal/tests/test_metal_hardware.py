"""What only a Mac can answer: accuracy and batch invariance on the GPU; ``-m hardware -s`` prints the figures."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_metal import decode_plugin, evidence, plugin
from synapse_owned_metal.device import METAL_PLATFORM, Device

from synapse_host.hookspecs import DType
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.testing.conformance.suite import ConformanceSuite
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_encoders import RECORDED, embedded, recorded_encoder
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3, write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
HERE = f"{sys.platform}-{platform.machine().lower()}"
pytestmark = pytest.mark.hardware
if HERE != METAL_PLATFORM:
    pytest.skip(f"needs a Mac with Apple silicon, this is {HERE}", allow_module_level=True)
DTYPES: tuple[DType, ...] = ("f16", "f32")
NONE: dict[str, str] = {}


def test_the_probe_finds_the_device() -> None:
    found = evidence.probe(Device("metal"))
    print(f"\n{found.observed}")
    assert found.status == "ok", found.message


class TestMetalOnTheGpu(ConformanceSuite):
    backend = "metal"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RECORDED)
def test_encoders_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, settings=NONE) as model:
        found = embedded(plugin, model, recorded.rows, "mean").astype(np.float64)
        alone = np.concatenate([embedded(plugin, model, [row], "mean") for row in recorded.rows])
    wanted = recorded.f64["mean"]
    cosine, spread = np.sum(found * wanted, axis=1).min(), np.abs(found - alone).max()
    changed = sum(a.tobytes() != b.tobytes() for a, b in zip(found.astype(np.float32), alone, strict=True))
    print(f"\n{name} {dtype}: cosine {cosine:.8f}, alone or batched: {changed} rows differ, by at most {spread:.2e}")
    assert cosine >= END_TO_END[dtype].min_cosine


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_every_generated_token_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(tmp_path, recorded.model, eos_token_id=None)
    limits: dict[str, Any] = {"dtype": "f32", "max_tokens": 300, "settings": NONE}
    with loaded_model(decode_plugin, tmp_path, runtime_config={"operation": "generate"}, **limits) as model:
        made = [
            list(decode_plugin.synapse_generate(model, prompt, {"max_tokens": 64}, ignore_progress).token_ids)
            for prompt in recorded.prompts
        ]
    assert made == recorded.generated.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_speed_at_the_shape_of_qwen3_embedding(dtype: DType, tmp_path: Path) -> None:
    """The width of Qwen3-Embedding-0.6B in 8 of its 28 blocks, with random weights; a figure, not a bar."""
    tiny = TinyQwen3(1, 1024, 8, 16, 8, 128, 3072, 4096, 8192, tied=True)
    write_qwen3(tmp_path, tiny)
    rows = seeded_rows(list(range(250, 314)), tiny.vocab)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=8192, settings=NONE) as model:
        plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
        began = time.perf_counter()
        plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
        took = time.perf_counter() - began
    print(f"\n8 blocks of 1,024 {dtype}: {sum(map(len, rows)) / took:,.0f} tokens a second")
