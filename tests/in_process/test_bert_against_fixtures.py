"""Our BERT on the numpy reference against what transformers computed (scripts/make_bert_fixtures.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families.bert import BertConfig
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.models.reference_run import bert_vectors, padded_batch, run_bert
from synapse_host.testing.models.tiny_models import TINY_BERTS, write_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Largest error of a component of a unit vector against float32 transformers.
MAX_ERROR = 2e-6


def open_weights(path: Path) -> CheckpointWeights:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return CheckpointWeights.open(descriptor, path.stat().st_size)
    finally:
        os.close(descriptor)


def sequences_of(fixture: Mapping[str, Any], prefix: str = "") -> list[list[int]]:
    ends = np.cumsum(fixture[f"{prefix}lengths"])[:-1]
    return [part.tolist() for part in np.split(fixture[f"{prefix}ids"], ends)]


def reference_ops(directory: Path) -> tuple[ReferenceOps, BertConfig]:
    config = json.loads((directory / "config.json").read_text())
    ops = ReferenceOps(open_weights(directory / "model.safetensors"), max_tokens=config["max_position_embeddings"])
    return ops, BertConfig.from_config(config, pooling="mean", normalize=True)


@pytest.mark.parametrize("name", sorted(TINY_BERTS))
def test_tiny_encoder_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    fixture = np.load(FIXTURES / "tiny_bert_reference.npz")
    sequences = sequences_of(fixture, f"{name}/")
    write_model(tmp_path, TINY_BERTS[name])
    found = bert_vectors(*reference_ops(tmp_path), sequences)
    assert len({len(sequence) for sequence in sequences}) == 24
    assert np.abs(found - fixture[f"{name}/vectors_f32"]).max() <= MAX_ERROR
    assert np.abs(found - fixture[f"{name}/vectors_f64"]).max() <= MAX_ERROR / 10


def test_minilm_agrees_with_transformers() -> None:
    fixture = np.load(FIXTURES / "minilm_reference.npz")
    sequences = sequences_of(fixture)
    lengths = {len(sequence) for sequence in sequences}
    assert len(sequences) == 64
    assert lengths >= {2, 31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512}
    found = bert_vectors(*reference_ops(minilm_directory()), sequences)
    assert np.abs(found - fixture["vectors"]).max() <= MAX_ERROR


def test_pad_ids_and_padded_length_do_not_reach_the_vectors(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_BERTS["two_layers"])
    ops, config = reference_ops(tmp_path)
    rows = [[2, 17, 44, 9, 3], [2, 3], [2, 301, 8, 8, 8, 8, 70, 3]]
    tight = run_bert(ops, config, padded_batch(rows))
    loose = run_bert(ops, config, padded_batch(rows, length=40, pad_id=300))
    assert np.abs(tight - loose).max() <= MAX_ERROR / 10


def test_the_bits_of_a_row_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    write_model(tmp_path, TINY_BERTS["three_layers"])
    ops, config = reference_ops(tmp_path)
    rows = [[2, *range(20 + i, 40 + 2 * i), 3] for i in range(7)]
    together = run_bert(ops, config, padded_batch(rows, length=48))
    for row, vector in zip(rows, together, strict=True):
        alone = run_bert(ops, config, padded_batch([row], length=48))
        assert alone[0].tobytes() == vector.tobytes()


def test_the_exact_gelu_is_not_the_tanh_form(tmp_path: Path) -> None:
    """The bound is tight enough to see one activation taken for the other."""
    fixture = np.load(FIXTURES / "tiny_bert_reference.npz")
    write_model(tmp_path, TINY_BERTS["tanh_gelu"])
    ops, _ = reference_ops(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"hidden_act": "gelu"}
    exact = BertConfig.from_config(config, pooling="mean", normalize=True)
    found = bert_vectors(ops, exact, sequences_of(fixture, "tanh_gelu/"))
    assert np.abs(found - fixture["tanh_gelu/vectors_f32"]).max() > 10 * MAX_ERROR
