"""Static embeddings on the reference: the mean of rows of a table, against numpy's own in float64."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from synapse_host.families.static import StaticConfig, block
from synapse_host.hookspecs import PluginError, Pooling
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import write_safetensors
from synapse_host.testing.models.tiny_static import TinyStatic

MODEL = TinyStatic(seed=7, hidden=37, vocab=301, positions=1500)
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 33, 64, 127, 129, 257, 700, 1100, 1500)
ROWS = seeded_rows(LENGTHS, MODEL.vocab)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("static"), MODEL.config(), MODEL.tensors())


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    with loaded_model(reference_plugin, folder, max_tokens=1500) as loaded:
        yield loaded


def written(folder: Path, config: dict[str, Any], tensors: dict[str, npt.NDArray[np.float32]]) -> Path:
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def embedded(model: Any, rows: list[Any], pooling: Pooling, normalize: bool) -> npt.NDArray[np.float32]:
    vectors = reference_plugin.synapse_embed(model, batch_of(rows, pooling, normalize), ignore_progress)
    return np.asarray(vectors)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_a_text_is_the_pooled_rows_of_its_tokens(model: Any, pooling: Pooling, normalize: bool) -> None:
    (table,) = (tensor.astype(np.float64) for tensor in MODEL.tensors().values())
    found = embedded(model, ROWS, pooling, normalize)
    for row, vector in zip(ROWS, found, strict=True):
        tokens = table[row]
        wanted = {"mean": tokens.mean(axis=0), "cls": tokens[0], "last": tokens[-1]}[pooling]
        wanted = wanted / np.linalg.norm(wanted) if normalize else wanted
        np.testing.assert_allclose(vector, wanted, rtol=0, atol=2e-7)


def test_a_row_has_the_same_bits_alone_and_in_any_batch(model: Any) -> None:
    together = embedded(model, ROWS, "mean", True)
    backwards = embedded(model, ROWS[::-1], "mean", True)[::-1]
    for place, row in enumerate(ROWS):
        alone = embedded(model, [row], "mean", True)[0]
        assert alone.tobytes() == together[place].tobytes() == backwards[place].tobytes()


@pytest.mark.parametrize("field", ["vocab_size", "hidden_size", "max_position_embeddings"])
@pytest.mark.parametrize("value", [None, 0, "9", True])
def test_a_size_it_cannot_use_is_refused_by_field_and_value(tmp_path: Path, field: str, value: object) -> None:
    written(tmp_path, MODEL.config() | {field: value}, MODEL.tensors())
    with pytest.raises(PluginError, match=field) as refusal, loaded_model(reference_plugin, tmp_path):
        pass
    assert refusal.value.code == "config_invalid"


@pytest.mark.parametrize("rows", [300, 302])
def test_a_table_of_another_size_is_refused_with_both_shapes(tmp_path: Path, rows: int) -> None:
    written(tmp_path, MODEL.config() | {"vocab_size": rows}, MODEL.tensors())
    loading = loaded_model(reference_plugin, tmp_path)
    with pytest.raises(PluginError, match=f"embedding.weight.*{rows}") as refusal, loading:
        pass
    assert "301" in str(refusal.value)
    assert refusal.value.code == "artifact_invalid"


@pytest.mark.parametrize("operation", ["rerank", "generate"])
def test_it_embeds_and_does_nothing_else(folder: Path, operation: str) -> None:
    loading = loaded_model(reference_plugin, folder, runtime_config={"operation": operation})
    with pytest.raises(PluginError, match="static") as refusal, loading:
        pass
    assert refusal.value.code == "operation_mismatch"


def test_there_is_no_layer_to_ask_for() -> None:
    config = StaticConfig.from_config(MODEL.config(), pooling="mean", normalize=True)
    assert config.layers == 0
    with pytest.raises(ValueError, match="no layer 0"):
        block(None, config, 0, None, None)  # type: ignore[arg-type]
