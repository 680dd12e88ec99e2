"""Graphs fused by ``mx.compile``, as on the GPU: each family in a few shapes, on the CPU device.

Every fused kernel starts a C++ compiler, so these are few: the rest of the tests run graphs as they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_metal import plugin
from synapse_owned_metal.device import Device
from synapse_owned_metal.runtime import mx

from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine.executables import ExecutableCache
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, vector_digest
from synapse_host.testing.models.recorded_encoders import recorded_encoder
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_qwen3 import write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
CPU = {"allow_cpu": "true"}


@pytest.fixture(autouse=True)
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Device, "compiles", property(lambda device: True))
    yield
    mx.clear_cache()


@pytest.mark.parametrize("name", ["xlm_roberta/two_layers", "modernbert/short_window"])
def test_encoders_agree_with_transformers_and_keep_their_bits(name: str, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    # Two of one rung, and one that a local window cuts into bands.
    short = [place for place, row in enumerate(recorded.rows) if len(row) <= 64][:2]
    long = [max(range(len(recorded.rows)), key=lambda place: len(recorded.rows[place]))]
    places = [*short, *(long if name.startswith("modernbert") else [])]
    rows = [recorded.rows[place] for place in places]
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, settings=CPU) as model:
        found = plugin.synapse_embed(model, batch_of(rows, "mean"), ignore_progress)
        alone = plugin.synapse_embed(model, batch_of(rows[:1], "mean"), ignore_progress)
    wanted = recorded.f64["mean"][places]
    assert np.abs(found - wanted).max() <= END_TO_END["f32"].max_abs_error
    assert vector_digest(alone[0]) == vector_digest(found[0])


def test_qwen3_agrees_with_transformers_and_compiles_each_shape_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    places = [place for place, row in enumerate(recorded.rows) if len(row) <= 64][:3]
    batch = batch_of([recorded.rows[place] for place in places], "last")
    made: list[Any] = []
    keep = ExecutableCache.get

    def watched(cache: ExecutableCache, key: Any, build: Any) -> Any:
        before = len(cache)
        found = keep(cache, key, build)
        made.extend([key.shape] * (len(cache) - before))
        return found

    monkeypatch.setattr(ExecutableCache, "get", watched)
    with loaded_model(plugin, tmp_path, max_tokens=recorded.longest, settings=CPU) as model:
        found = plugin.synapse_embed(model, batch, ignore_progress)
        again = plugin.synapse_embed(model, batch, ignore_progress)
    assert np.abs(found - recorded.vectors["f64"][places]).max() <= END_TO_END["f32"].max_abs_error
    assert again.tobytes() == found.tobytes()
    # Warm-up pools by mean; three rows of a rung are a call of two and a call of one.
    assert made == [(1, 64), (2, 64), (1, 64)]
