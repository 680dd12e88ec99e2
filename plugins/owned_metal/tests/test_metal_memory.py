"""The memory a lane is planned for, against what MLX's CPU device takes for its largest call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from synapse_owned_metal import lane_limits, plugin
from synapse_owned_metal.memory_plan import CallSize, memory_plan
from synapse_owned_metal.runtime import mx

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3

#: Few layers of small widths: what one takes, the next takes again, and scores depend on no width. Queries of the
#: second are four times as wide as its rows.
MODELS: dict[str, Any] = {
    "modernbert": (lambda to: write_model(to, TinyModernBert(9, 64, 3, 4, 96, 97, 3100, span=66)), "mean"),
    "qwen3": (lambda to: write_qwen3(to, TinyQwen3(9, 64, 1, 8, 4, 32, 192, 97, 8192, tied=True)), "last"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_longest_row_takes_no_more_than_was_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, pooling = MODELS[name]
    write(tmp_path)
    planned: list[CallSize] = []

    def noted(weight_bytes: int, call: CallSize, *, device_limit: int | None) -> Any:
        planned.append(call)
        return memory_plan(weight_bytes, call, device_limit=device_limit)

    monkeypatch.setattr(lane_limits, "memory_plan", noted)
    with loaded_model(plugin, tmp_path, dtype="f32", max_tokens=2048, settings={"allow_cpu": "true"}) as model:
        mx.clear_cache()
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        plugin.synapse_embed(model, batch_of(seeded_rows([2048], 97), pooling), ignore_progress)
        taken = mx.get_peak_memory() - held
    assert planned[0].bytes / 8 <= taken <= planned[0].bytes
