"""Scores of the engine over the numpy backend: order, token kinds, neighbours, other heads, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import family_table, reference_plugin
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import write_model
from synapse_host.testing.models.tiny_rerankers import TinyBertReranker

MODEL = TinyBertReranker(seed=6, hidden=24, layers=3, heads=4, intermediate=40, vocab=97, positions=64)
SEPARATOR = 3
LENGTHS = (33, 5, 16, 17, 4, 48, 15, 32, 31, 47)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reranker")
    write_model(path, MODEL)
    return path


def loaded(directory: Path, **more: str) -> Any:
    return loaded_model(reference_plugin, directory, max_tokens=64, runtime_config={"operation": "rerank", **more})


@pytest.fixture
def engine(directory: Path) -> Iterator[OwnedEngine]:
    with loaded(directory, pair_separator=str(SEPARATOR)) as model:
        yield model


def pairs(lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    """Rows with one separator in the second place and one at the end."""
    rows = [4 + row % (MODEL.vocab - 4) for row in seeded_rows(lengths, 10_000)]
    for row in rows:
        row[1] = row[-1] = SEPARATOR
    return rows


def scores(engine: OwnedEngine, rows: list[Any]) -> list[float]:
    found = engine.rerank(rows, ignore_progress)
    assert found.dtype == np.float32
    return [float(score) for score in found]


def test_scores_come_in_the_order_of_the_sequences(engine: OwnedEngine) -> None:
    rows = pairs()
    together = scores(engine, rows)
    assert together == [scores(engine, [row])[0] for row in rows]
    assert len(set(together)) == len(rows)
    assert scores(engine, rows[::-1]) == together[::-1]
    assert engine.rows_computed == 3 * len(rows)


def test_a_model_for_reranking_makes_no_vectors(engine: OwnedEngine) -> None:
    assert engine.dims == 0
    assert scores(engine, []) == []


def test_the_second_text_is_told_from_the_first(directory: Path, engine: OwnedEngine) -> None:
    rows = pairs()
    with loaded(directory) as plain:
        assert not np.allclose(scores(plain, rows), scores(engine, rows), atol=1e-3)
    unseparated = [np.where(row == SEPARATOR, 4, row).astype(np.int32) for row in rows]
    with loaded(directory) as plain:
        assert scores(plain, unseparated) == scores(engine, unseparated)


def test_kinds_change_after_the_first_separator() -> None:
    ids = np.array([[9, 3, 5, 3, 3, 0], [3, 1, 1, 1, 1, 1], [7, 7, 7, 7, 7, 7]], np.int32)
    expected = [[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1], [0] * 6]
    assert engine_module._kinds(ids, 3).tolist() == expected


def test_segments_move_no_bit_of_a_score(engine: OwnedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pairs((10, 40))
    whole = scores(engine, rows)
    monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
    seen: list[int] = []
    assert engine.rerank(rows, lambda done, phase: seen.append(done)).tolist() == whole
    assert seen == [1, 2, 3, 4, 5, 6]


def test_a_readout_of_two_numbers_becomes_one_score(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(ops: Any, cfg: Any, x: Any, batch: Any) -> Any:
        return ops.split(ops.first_row(x, batch), (2, cfg.hidden_size - 2))[0]

    bert = family_table.FAMILIES["bert"]
    changed = replace(bert, score=twice, read_scores=lambda two: two[:, 0] - two[:, 1])
    monkeypatch.setattr(family_table, "FAMILIES", {"bert": replace(bert, score=twice)})
    rows = pairs((20, 9))
    with loaded(directory) as raw, pytest.raises(ValueError, match="reshape"):
        raw.rerank(rows, ignore_progress)
    monkeypatch.setattr(family_table, "FAMILIES", {"bert": changed})
    with loaded(directory) as model:
        assert model.rerank(rows, ignore_progress).shape == (2,)


def test_a_family_without_a_score_head_does_not_rerank(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = replace(family_table.FAMILIES["bert"], score=None)
    monkeypatch.setattr(family_table, "FAMILIES", {"bert": bare})
    with pytest.raises(PluginError, match="family bert does not rerank") as refused, loaded(directory):
        pass
    assert refused.value.code == "operation_mismatch"


@pytest.mark.parametrize(
    ("place", "length", "said"),
    [(1, 12, 'item "1": token id 97 is outside the vocabulary of 97'), (0, 65, 'item "0": a row of 65 tokens')],
)
def test_a_bad_sequence_is_named_by_its_position(engine: OwnedEngine, place: int, length: int, said: str) -> None:
    rows = seeded_rows([3, 3], MODEL.vocab)
    rows[place] = np.full(length, MODEL.vocab if length < 64 else 5, np.int32)
    with pytest.raises(PluginError) as refused:
        engine.rerank(rows, ignore_progress)
    assert refused.value.code == "invalid_request"
    assert str(refused.value).startswith(said)
