"""Scores of a tiny cross-encoder on the CPU backend: close to the reference, and the same bits in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_cpu import plugin

from synapse_host.hookspecs import DType
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_rerankers import TINY_RERANKERS

MODEL = TINY_RERANKERS["two_layers"]
DTYPES = plugin.synapse_describe().dtypes
#: Largest error of a logit and of its sigmoid against the reference, by activation type.
LOGIT_ERROR = {"f32": 1e-4, "bf16": 0.03}
SIGMOID_ERROR = {"f32": 0.005, "bf16": 0.02}
SEPARATOR = 3
LENGTHS = [*range(4, 36), *range(60, 70), *range(120, 131), 41, 44, 47, 50, 53, 56, 75, 85, 95, 105, 115]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reranker")
    write_model(path, MODEL)
    return path


def pairs(lengths: Sequence[int]) -> list[Any]:
    """Pairs whose second text begins somewhere in the row; a row depends on its length alone."""
    rows = []
    for length in lengths:
        random = np.random.default_rng(length)
        row = random.integers(4, MODEL.vocab, length).astype(np.int32)
        row[0], row[-1] = 2, SEPARATOR
        row[random.integers(1, length - 1)] = SEPARATOR
        rows.append(row)
    return rows


def loaded(backend: Any, directory: Path, dtype: DType = "f32") -> Any:
    runtime = {"operation": "rerank", "pair_separator": str(SEPARATOR)}
    return loaded_model(backend, directory, dtype=dtype, max_tokens=131, runtime_config=runtime)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_agree_with_the_reference(directory: Path, dtype: DType) -> None:
    rows = pairs(LENGTHS)
    assert len(set(LENGTHS)) == len(rows) == 64
    with loaded(reference_plugin, directory) as model:
        wanted = reference_plugin.synapse_rerank(model, rows, ignore_progress).astype(np.float64)
    with loaded(plugin, directory, dtype) as model:
        found = plugin.synapse_rerank(model, rows, ignore_progress).astype(np.float64)
    assert np.ptp(wanted) > 0.5
    assert np.abs(found - wanted).max() <= LOGIT_ERROR[dtype]
    assert np.abs(1 / (1 + np.exp(-found)) - 1 / (1 + np.exp(-wanted))).max() <= SIGMOID_ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_a_score_do_not_depend_on_its_neighbours(directory: Path, dtype: DType) -> None:
    rows = pairs(LENGTHS)
    order = np.random.default_rng(5).permutation(len(rows))
    with loaded(plugin, directory, dtype) as model:
        alone = [plugin.synapse_rerank(model, [row], ignore_progress).tobytes() for row in rows]
        together = plugin.synapse_rerank(model, [rows[place] for place in order], ignore_progress)
    assert [together[place : place + 1].tobytes() for place in np.argsort(order)] == alone
    # bfloat16 leaves a logit eight bits, so some rows share a score.
    assert len(set(alone)) >= {"f32": len(rows), "bf16": len(rows) // 2}[dtype]


def test_segments_move_no_bit_of_a_score(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pairs((20, 90))
    with loaded(plugin, directory) as model:
        whole = plugin.synapse_rerank(model, rows, ignore_progress).tobytes()
    monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
    with loaded(plugin, directory) as model:
        assert plugin.synapse_rerank(model, rows, ignore_progress).tobytes() == whole
