"""The engine over the numpy backend: order, counting, progress, cutting and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.engine import OwnedEngine
from synapse_host.owned_engine.family_table import FAMILIES
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.tiny_models import write_tiny_bert

VOCAB = 97
#: Edges of the small buckets, one row of each, out of order.
LENGTHS = (33, 1, 16, 17, 2, 48, 15, 32, 31, 47)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_bert(path, seed=5, hidden=24, layers=3, heads=4, intermediate=40, vocab=VOCAB, positions=64)
    return path


@pytest.fixture
def engine(directory: Path) -> Iterator[OwnedEngine]:
    with loaded_model(reference_plugin, directory, max_tokens=64) as model:
        yield model


def digests(engine: OwnedEngine, rows: list[Any]) -> list[str]:
    return [vector_digest(vector) for vector in engine.embed(batch_of(rows), ignore_progress)]


def test_a_loaded_model_states_its_size_and_buckets(engine: OwnedEngine) -> None:
    assert engine.dims == 24
    assert list(engine.buckets or ()) == [16, 32, 48, 64]


def test_vectors_come_in_the_order_of_the_batch(engine: OwnedEngine) -> None:
    rows = seeded_rows(LENGTHS, VOCAB)
    together = digests(engine, rows)
    assert together == [digests(engine, [row])[0] for row in rows]
    assert len(set(together)) == len(rows)
    assert digests(engine, rows[::-1]) == together[::-1]


def test_equal_rows_get_equal_vectors_and_each_is_computed(engine: OwnedEngine) -> None:
    row = seeded_rows([20], VOCAB)[0]
    assert len(set(digests(engine, [row] * 5))) == 1
    assert engine.rows_computed == 5


def test_rows_computed_equal_rows_asked_for(engine: OwnedEngine) -> None:
    assert engine.rows_computed == 0
    engine.embed(batch_of(seeded_rows(LENGTHS, VOCAB)), ignore_progress)
    engine.embed(batch_of(seeded_rows(LENGTHS[:3], VOCAB)), ignore_progress)
    assert engine.rows_computed == len(LENGTHS) + 3


def test_an_empty_batch_has_no_vectors(engine: OwnedEngine) -> None:
    vectors = engine.embed(batch_of([]), ignore_progress)
    assert (vectors.shape, vectors.dtype) == ((0, 24), np.float32)


def test_progress_grows_by_one_for_every_call(engine: OwnedEngine) -> None:
    seen: list[tuple[int, str]] = []
    engine.embed(batch_of(seeded_rows([10, 10, 10, 40], VOCAB)), lambda done, phase: seen.append((done, phase)))
    assert seen == [(1, "inference"), (2, "inference"), (3, "inference")]


def test_segments_report_progress_and_move_no_bit(engine: OwnedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = seeded_rows([10, 40], VOCAB)
    whole = digests(engine, rows)
    monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
    seen: list[int] = []
    cut = engine.embed(batch_of(rows), lambda done, phase: seen.append(done))
    assert [vector_digest(vector) for vector in cut] == whole
    assert seen == [1, 2, 3, 4, 5, 6]


def test_pooling_and_normalisation_follow_the_batch(engine: OwnedEngine) -> None:
    rows = seeded_rows([12], VOCAB)
    mean = engine.embed(batch_of(rows), ignore_progress)[0]
    raw = engine.embed(batch_of(rows, normalize=False), ignore_progress)[0]
    first = engine.embed(batch_of(rows, "cls"), ignore_progress)[0]
    last = engine.embed(batch_of(rows, "last"), ignore_progress)[0]
    assert np.linalg.norm(mean) == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(raw / np.linalg.norm(raw), mean, atol=1e-6)
    assert not np.allclose(first, mean, atol=1e-2)
    assert not np.allclose(first, last, atol=1e-2)


def refusal_of(engine: OwnedEngine, batch: Any) -> PluginError:
    with pytest.raises(PluginError) as refused:
        engine.embed(batch, ignore_progress)
    assert engine.rows_computed == 0
    return refused.value


@pytest.mark.parametrize(("place", "token"), [(0, VOCAB), (4, -1), (11, 10**6)])
def test_an_id_outside_the_vocabulary_names_item_and_id(engine: OwnedEngine, place: int, token: int) -> None:
    rows = seeded_rows([3, 12, 5], VOCAB)
    rows[1][place] = token
    refusal = refusal_of(engine, batch_of(rows))
    assert refusal.code == "invalid_request"
    assert str(refusal).startswith(f'item "1": token id {token} is outside the vocabulary of {VOCAB}')


@pytest.mark.parametrize("length", [0, 65])
def test_a_row_that_does_not_fit_names_item_and_length(engine: OwnedEngine, length: int) -> None:
    refusal = refusal_of(engine, batch_of(seeded_rows([3, length], VOCAB)))
    assert refusal.code == "invalid_request"
    assert str(refusal).startswith(f'item "1": a row of {length} tokens')


def test_ids_that_do_not_match_the_counts_are_refused(engine: OwnedEngine) -> None:
    batch = batch_of(seeded_rows([3, 4], VOCAB))
    broken = type(batch)(batch.ids[:-1], batch.counts, batch.item_ids, "mean", True)
    assert "6 token ids came for rows of 7" in str(refusal_of(engine, broken))


def test_the_reference_plugin_describes_an_owned_cpu_engine() -> None:
    description = reference_plugin.synapse_describe()
    assert (description.backend, description.engine, description.device_class) == ("reference", "reference", "cpu")
    assert description.owned
    assert description.dtypes == ("f32",)
    assert description.families == tuple(FAMILIES)
    assert reference_plugin.synapse_probe_capability().status == "ok"
