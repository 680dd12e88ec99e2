"""Rows of 8,192 tokens: memory grows with their length, and progress comes after every submission."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import backend as backend_module
from synapse_vulkan import plugin
from synapse_vulkan.arena import Plan, plan
from synapse_vulkan.binding import open_binding
from synapse_vulkan.opening import open_runtime
from synapse_vulkan.pace import Pace

from synapse_host.testing.engine_runs import batch_of, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vulkan_device")]
loaded = partial(loaded_model, plugin, settings={"allow_software_device": "true"})
LONGEST = 8192
MODEL = TinyModernBert(71, 128, 4, 4, 192, 101, LONGEST, span=128)


def test_the_longest_row_completes_with_linear_memory_and_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layouts: list[Plan] = []
    monkeypatch.setattr(backend_module, "plan", lambda lives: layouts.append(plan(lives)) or layouts[-1])
    submissions = count_submissions(monkeypatch)
    write_model(tmp_path, MODEL)
    reports: list[int] = []
    with loaded(tmp_path, max_tokens=LONGEST) as model:
        half = plugin.synapse_embed(model, batch_of(seeded_rows([LONGEST // 2], 97)), lambda done, phase: None)
        arenas = [layout.size for layout in layouts]
        layouts.clear()
        submissions.clear()
        whole = plugin.synapse_embed(
            model, batch_of(seeded_rows([LONGEST], 97)), lambda done, phase: reports.append(done)
        )
    assert np.linalg.norm(np.concatenate([half, whole]), axis=1) == pytest.approx([1.0, 1.0], abs=1e-5)
    assert max(layout.size for layout in layouts) <= 2.1 * max(arenas)
    # One report a fence: whoever waits sees every one of them.
    assert reports == list(range(1, len(submissions) + 1))
    assert len(submissions) >= 8


def count_submissions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    device = open_runtime().device
    submit = device.submit
    monkeypatch.setattr(device, "submit", lambda commands: seen.append(commands) or submit(commands))
    # A slow device: submissions of a fixed size, whatever this one was measured at.
    monkeypatch.setattr(open_runtime(), "pace", Pace(20e9))
    assert open_binding() is device.vk
    return seen
