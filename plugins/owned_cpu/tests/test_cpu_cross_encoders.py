"""Scores of cross-encoders on the CPU backend: close to transformers, and the same bits in any batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from synapse_owned_cpu import plugin

from synapse_host.hookspecs import DType
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.recorded_encoders import recorded_pairs
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_models import write_model

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES = plugin.synapse_describe().dtypes
#: Largest error of a logit and of its sigmoid, by activation type.
LOGIT_ERROR = {"f32": 1e-4, "bf16": 0.03}
SIGMOID_ERROR = {"f32": 0.005, "bf16": 0.02}
RERANK = {"operation": "rerank", "pair_separator": str(SEPARATOR)}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_logits_agree_with_transformers_and_keep_their_bits(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    order = np.random.default_rng(3).permutation(len(recorded.rows))
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, runtime_config=RERANK) as model:
        found = plugin.synapse_rerank(model, recorded.rows, ignore_progress)
        shuffled = plugin.synapse_rerank(model, [recorded.rows[place] for place in order], ignore_progress)
        alone = [plugin.synapse_rerank(model, [row], ignore_progress).tobytes() for row in recorded.rows]
    assert shuffled.tobytes() == found[order].tobytes()
    assert alone == [score.tobytes() for score in found]
    assert np.abs(found - recorded.f64).max() <= LOGIT_ERROR[dtype]
    assert np.abs(sigmoid(found.astype(np.float64)) - sigmoid(recorded.f64)).max() <= SIGMOID_ERROR[dtype]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))
