"""Qwen3 and the cross-encoders on the Vulkan backend: close to transformers, and the same bits in any batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import plugin

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_encoders import recorded_pairs
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
loaded = partial(loaded_model, plugin, settings={"allow_software_device": "true"})
pytestmark = pytest.mark.usefixtures("vulkan_device")
RERANK = {"operation": "rerank", "pair_separator": str(SEPARATOR)}


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_logits_of_cross_encoders_agree_with_transformers_and_keep_their_bits(name: str, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    order = np.random.default_rng(3).permutation(len(recorded.rows))
    with loaded(tmp_path, max_tokens=recorded.longest, runtime_config=RERANK) as model:
        found = plugin.synapse_rerank(model, recorded.rows, ignore_progress)
        shuffled = plugin.synapse_rerank(model, [recorded.rows[place] for place in order], ignore_progress)
        alone = [plugin.synapse_rerank(model, [row], ignore_progress).tobytes() for row in recorded.rows[:4]]
    assert shuffled.tobytes() == found[order].tobytes()
    assert alone == [score.tobytes() for score in found[:4]]
    assert np.abs(found - recorded.f64).max() <= 1e-4


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_tiny_qwen3_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(tmp_path, recorded.model)
    with loaded(tmp_path, max_tokens=recorded.longest) as model:
        found = embedded(model, recorded.rows[::2]).astype(np.float64)
    wanted = recorded.vectors["f64"][::2]
    assert max(map(len, recorded.rows[::2])) > 256
    assert np.sum(found * wanted, axis=1).min() >= 0.999999
    assert np.abs(found - wanted).max() <= 2e-6


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_scores_of_qwen3_agree_with_transformers_in_any_batch(name: str, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    rows, logits = recorded.rows[::3], recorded.logits["f64"][::3]
    write_qwen3(tmp_path, recorded.model, readout_ids=list(recorded.readout))
    with loaded(tmp_path, max_tokens=recorded.longest, runtime_config={"operation": "rerank"}) as model:
        found = plugin.synapse_rerank(model, rows, ignore_progress)
        again = plugin.synapse_rerank(model, rows[::-1], ignore_progress)
    assert np.abs(found - 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))).max() <= 1e-5
    assert again[::-1].tobytes() == found.tobytes()


def test_a_qwen3_row_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    edges = seeded_rows([31, 32, 33, 127, 128, 129, 255, 256, 257], recorded.model.vocab)
    rows = [*edges, *(row[:-1] for row in edges)]
    write_qwen3(tmp_path, recorded.model, "bf16")
    with loaded(tmp_path, max_tokens=recorded.longest) as model:
        alone = np.concatenate([embedded(model, [row]) for row in rows])
        order = np.random.default_rng(8).permutation(len(rows))
        together = embedded(model, [rows[place] for place in order])
    assert together.tobytes() == alone[order].tobytes()


def embedded(model: Any, rows: list[Any]) -> Any:
    return plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
