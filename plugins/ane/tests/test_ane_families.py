"""Whole models as saved Core ML packages, run by the interpreter in half precision, against transformers.

Everything but the hardware is what ships: recording, conversion, a package of several functions on disk, its weights
read back, the look-ups of the host, the shared engine. Rows of one rung below and one above the tiles of attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_ane import plugin

from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.recorded_encoders import recorded_encoder, recorded_pairs
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_cross_encoders import SEPARATOR
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_host.testing.models.tiny_static import TinyStatic

pytestmark = [
    pytest.mark.slow,
    # coremltools leaves the folders of its conversions to the garbage collector.
    pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning"),
]

INTERPRETED = {"allow_interpreter": "true"}
FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
BOUND = END_TO_END["f16"]
#: Largest error of a logit and of its sigmoid, as other lanes of half precision are held to.
LOGIT_ERROR, SIGMOID_ERROR = 0.03, 0.02


def of_two_rungs(rows: list[Any]) -> list[int]:
    """Places of the rows of the shortest rung, and of the first two of the fourth, whose attention is cut in tiles."""
    short = [place for place, row in enumerate(rows) if len(row) <= 128]
    return short + [place for place, row in enumerate(rows) if len(row) > 512][:2]


def embedded(directory: Path, rows: list[Any], pooling: Any, max_tokens: int, module: Any = plugin) -> Any:
    dtype: Any = "f16" if module is plugin else "f32"
    with loaded_model(module, directory, dtype=dtype, max_tokens=max_tokens, settings=INTERPRETED) as model:
        return module.synapse_embed(model, batch_of(rows, pooling), ignore_progress).astype(np.float64)


def check(found: Any, wanted: Any) -> None:
    assert np.sum(found * wanted, axis=1).min() >= BOUND.min_cosine
    assert np.abs(found - wanted).max() <= BOUND.max_abs_error


@pytest.mark.parametrize("name", ["xlm_roberta/three_layers", "modernbert/as_published"])
def test_encoders_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_encoder(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    places = of_two_rungs(recorded.rows)
    assert {len(recorded.rows[place]) > 512 for place in places} == {True, False}
    rows = [recorded.rows[place] for place in places]
    check(embedded(tmp_path, rows, "mean", recorded.longest), recorded.f64["mean"][places])


def test_qwen3_agrees_with_transformers(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model)
    places = of_two_rungs(recorded.rows)
    rows = [recorded.rows[place] for place in places]
    check(embedded(tmp_path, rows, "last", recorded.longest), recorded.vectors["f64"][places])


LONG: dict[str, tuple[Any, Any]] = {
    "modernbert": (TinyModernBert(5, 8, 2, 2, 12, 97, 2048, span=128), "mean"),
    "qwen3": (TinyQwen3(5, 8, 1, 2, 1, 8, 12, 97, 2048, tied=True), "last"),
}


@pytest.mark.parametrize("name", LONG)
def test_rows_of_two_thousand_positions_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    """Tiles of the most scores there may be; the two longer rungs have more tiles of that size."""
    tiny, pooling = LONG[name]
    write_model(tmp_path, tiny)
    rows = seeded_rows([1025, 2048], 97)
    check(embedded(tmp_path, rows, pooling, 2048), embedded(tmp_path, rows, pooling, 2048, reference_plugin))


def test_bert_agrees_with_the_reference(tmp_path: Path) -> None:
    write_model(tmp_path, TinyBert(7, hidden=40, layers=2, heads=4, intermediate=56, vocab=301, positions=130))
    rows = seeded_rows([1, 2, 7, 31, 32, 33, 100, 127, 128], 301)
    wanted = embedded(tmp_path, rows, "cls", 128, reference_plugin)
    check(embedded(tmp_path, rows, "cls", 128), wanted)


def test_a_static_table_agrees_with_the_reference(tmp_path: Path) -> None:
    write_model(tmp_path, TinyStatic(3, 40, 301, 130))
    rows = seeded_rows([1, 2, 31, 100, 128], 301)
    check(embedded(tmp_path, rows, "mean", 128), embedded(tmp_path, rows, "mean", 128, reference_plugin))


@pytest.mark.parametrize("name", ["bert/two_layers", "xlm_roberta/two_layers", "modernbert/mean"])
def test_scores_of_pairs_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recorded_pairs(FIXTURES, name)
    write_model(tmp_path, recorded.model)
    places = [place for place, row in enumerate(recorded.rows) if len(row) <= 128]
    runtime = {"operation": "rerank", "pair_separator": str(SEPARATOR)}
    with loaded_model(
        plugin, tmp_path, dtype="f16", max_tokens=128, runtime_config=runtime, settings=INTERPRETED
    ) as model:
        found = plugin.synapse_rerank(model, [recorded.rows[place] for place in places], ignore_progress)
    wanted = recorded.f64[places]
    assert np.abs(found - wanted).max() <= LOGIT_ERROR
    assert np.abs(1 / (1 + np.exp(-found.astype(np.float64))) - 1 / (1 + np.exp(-wanted))).max() <= SIGMOID_ERROR


def test_probabilities_of_qwen3_agree_with_transformers(tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model, readout_ids=list(recorded.readout))
    places = [place for place, row in enumerate(recorded.rows) if len(row) <= 128]
    runtime = {"operation": "rerank"}
    with loaded_model(
        plugin, tmp_path, dtype="f16", max_tokens=128, runtime_config=runtime, settings=INTERPRETED
    ) as model:
        found = plugin.synapse_rerank(model, [recorded.rows[place] for place in places], ignore_progress)
    logits = recorded.logits["f64"][places]
    assert np.abs(found - 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))).max() <= SIGMOID_ERROR


def test_a_row_has_the_same_bits_alone_and_in_any_batch(tmp_path: Path) -> None:
    write_model(tmp_path, TinyBert(8, hidden=24, layers=1, heads=2, intermediate=32, vocab=99, positions=130))
    rows = seeded_rows([5, 6, 31, 32, 33, 90, 128], 99)
    with loaded_model(plugin, tmp_path, dtype="f16", max_tokens=128, settings=INTERPRETED) as model:
        together = plugin.synapse_embed(model, batch_of(rows), ignore_progress)
        alone = [plugin.synapse_embed(model, batch_of([row]), ignore_progress)[0] for row in rows]
    assert together.tobytes() == np.stack(alone).tobytes()
