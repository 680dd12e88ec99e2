"""Scores of cross-encoders on the reference against those of transformers (scripts/make_encoder_fixtures.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families.modernbert_config import ModernBertConfig
from synapse_host.hookspecs import PluginError
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import ignore_progress, loaded_model
from synapse_host.testing.models.recorded_encoders import RecordedPairs, recorded_pairs
from synapse_host.testing.models.tiny_cross_encoders import CROSS_ENCODERS, SEPARATOR
from synapse_host.testing.models.tiny_models import write_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Largest error of a logit, relative to the largest logit of the model.
MAX_ERROR = 5e-6
RERANK = {"operation": "rerank", "pair_separator": str(SEPARATOR)}


def reference_scores(recorded: RecordedPairs, directory: Path) -> Any:
    write_model(directory, recorded.model)
    with loaded_model(reference_plugin, directory, max_tokens=recorded.longest, runtime_config=RERANK) as model:
        return reference_plugin.synapse_rerank(model, recorded.rows, ignore_progress)


def error(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("name", CROSS_ENCODERS)
def test_logits_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    found = reference_scores(recorded, tmp_path)
    assert len({len(row) for row in recorded.rows}) == 24
    assert np.ptp(recorded.f64) > 0.2
    assert error(found, recorded.f32) <= MAX_ERROR
    assert error(found, recorded.f64) <= MAX_ERROR / 5


FAULTS: Mapping[str, tuple[str, Any]] = {
    "mean for cls": ("modernbert/cls", lambda c: replace(c, classifier_pooling="mean")),
    "cls for mean": ("modernbert/mean", lambda c: replace(c, classifier_pooling="cls")),
    "tanh form of the head's GELU": ("modernbert/mean", lambda c: replace(c, classifier_gelu="tanh")),
    "erf form of the head's GELU": ("modernbert/cls", lambda c: replace(c, classifier_gelu="erf")),
    "no bias in the head": ("modernbert/cls", lambda c: replace(c, classifier_bias=False)),
    "positions one row early": (
        "xlm_roberta/pad_four",
        lambda c: replace(c, first_position=c.first_position - 1, positions=c.positions + 1),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_passes_the_bound_by_far(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    recorded = recorded_pairs(FIXTURES, name)
    read = engine_module._read_config
    monkeypatch.setattr(engine_module, "_read_config", lambda *arguments: plant(read(*arguments)))
    assert error(reference_scores(recorded, tmp_path), recorded.f32) > 10 * MAX_ERROR


def test_a_head_without_its_tanh_passes_the_bound_by_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_pairs(FIXTURES, "xlm_roberta/two_layers")
    monkeypatch.setattr(ReferenceOps, "tanh", lambda self, x: x)
    assert error(reference_scores(recorded, tmp_path), recorded.f32) > 10 * MAX_ERROR


@pytest.mark.parametrize("name", ["xlm_roberta/two_layers", "modernbert/mean"])
def test_a_classifier_of_more_labels_is_refused_at_load(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, CROSS_ENCODERS[name])
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"0": "LABEL_0"', '"0": "no", "1": "yes"'))
    with (
        pytest.raises(PluginError, match="json names 2 labels and a reranker has 1") as refused,
        loaded_model(reference_plugin, tmp_path, max_tokens=100, runtime_config=RERANK),
    ):
        pass
    assert refused.value.code == "config_invalid"


def test_a_pooling_no_classifier_has_is_refused() -> None:
    config = CROSS_ENCODERS["modernbert/mean"].config() | {"classifier_pooling": "max"}
    with pytest.raises(ValueError, match="classifier_pooling 'max'"):
        ModernBertConfig.from_config(config, pooling="cls", normalize=True)
