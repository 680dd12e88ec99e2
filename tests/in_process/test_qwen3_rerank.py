"""Qwen3 read out as a reranker on the numpy reference, against the two logits transformers computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families import qwen3
from synapse_host.hookspecs import PluginError
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.recorded_qwen3 import RecordedQwen3, recorded_qwen3
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Largest error of a logit relative to the largest of its kind, and of a probability.
MAX_LOGIT_ERROR, MAX_ERROR = 5e-6, 5e-6


@contextmanager
def loaded(recorded: RecordedQwen3, directory: Path) -> Iterator[Any]:
    write_qwen3(directory, recorded.model, readout_ids=list(recorded.readout))
    runtime = {"operation": "rerank"}
    with loaded_model(reference_plugin, directory, max_tokens=recorded.longest, runtime_config=runtime) as model:
        yield model


def wanted_scores(recorded: RecordedQwen3) -> Any:
    logits = recorded.logits["f64"]
    return 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_scores_agree_with_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    read: list[Any] = []
    multiplied = ReferenceOps.logits

    def watched(ops: Any, x: Any, w: Any, rows: Any = None) -> Any:
        read.append((rows, multiplied(ops, x, w, rows)))
        return read[-1][1]

    monkeypatch.setattr(ReferenceOps, "logits", watched)
    with loaded(recorded, tmp_path) as model:
        read.clear()
        found = [reference_plugin.synapse_rerank(model, [row], ignore_progress)[0] for row in recorded.rows]
    logits = np.concatenate([numbers[:, 0] for _, numbers in read])
    assert {tuple(rows) for rows, _ in read} == {recorded.readout}
    for dtype in ("f32", "f64"):
        wanted = recorded.logits[dtype]
        assert np.abs(logits - wanted).max() <= MAX_LOGIT_ERROR * np.abs(wanted).max()
    assert np.abs(found - wanted_scores(recorded)).max() <= MAX_ERROR
    assert 0 < min(found) < 0.5 < max(found) < 1


def test_scores_have_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "one_key_head")
    rows = [*recorded.rows[:9], *(row[:-1] for row in recorded.rows[2:9]), *(row[:-2] for row in recorded.rows[2:9])]
    with loaded(recorded, tmp_path) as model:
        alone = np.concatenate([reference_plugin.synapse_rerank(model, [row], ignore_progress) for row in rows])
        order = np.random.default_rng(7).permutation(len(rows))
        together = reference_plugin.synapse_rerank(model, [rows[place] for place in order], ignore_progress)
    assert together.tobytes() == alone[order].tobytes()


def other_embeddings(ops: Any, cfg: Any) -> Any:
    return ops.weight("embed_tokens.weight", (cfg.vocab_size, cfg.hidden_size))


FAULTS = {
    "yes and no exchanged": lambda patch, recorded: replace(recorded, readout=recorded.readout[::-1]),
    "the token after yes": lambda patch, recorded: replace(
        recorded, readout=(recorded.readout[0] - 1, recorded.readout[1])
    ),
    "tied embeddings where they are not": lambda patch, recorded: (
        patch.setattr(qwen3, "_output_embeddings", other_embeddings) or recorded
    ),
    "no final norm": lambda patch, recorded: patch.setattr(qwen3, "_final_norm", lambda ops, cfg, x: x) or recorded,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_passes_the_bound_by_far(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    spoiled = FAULTS[fault](monkeypatch, recorded)
    with loaded(spoiled, tmp_path) as model:
        found = reference_plugin.synapse_rerank(model, recorded.rows[:5], ignore_progress)
    assert np.abs(found - wanted_scores(recorded)[:5]).max() > 100 * MAX_ERROR


def test_a_readout_outside_the_vocabulary_is_refused_at_load(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    with (
        pytest.raises(PluginError, match=r"readout_ids \(333, 7\) pass the vocabulary of 333") as refused,
        loaded(replace(recorded, readout=(333, 7)), tmp_path),
    ):
        pass
    assert refused.value.code == "config_invalid"
