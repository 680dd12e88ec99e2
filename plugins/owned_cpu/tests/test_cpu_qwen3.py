"""Qwen3 on the CPU backend: close to transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_owned_cpu import attention_graph, nodes, plugin
from synapse_owned_cpu.openvino_ops import OpenVinoOps
from synapse_owned_cpu.runtime import opset

from synapse_host.families import qwen3
from synapse_host.hookspecs import DType
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.recorded_qwen3 import recorded_qwen3
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, TinyQwen3, write_qwen3

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures"
DTYPES = plugin.synapse_describe().dtypes
#: Smallest cosine and largest error of a component. A vector of one row keeps the rounding that a mean of many rows
#: averages away: transformers in bfloat16 comes to 0.9994 to 0.9999 on such models.
FLOORS = {"f32": (0.999999, 2e-6), "bf16": (0.9998, 0.02)}


def embedded(model: Any, rows: list[Any]) -> Any:
    return plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)


def digests(model: Any, rows: list[Any]) -> list[str]:
    return [vector_digest(vector) for vector in embedded(model, rows)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_tiny_models_agree_with_transformers(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        found = embedded(model, recorded.rows).astype(np.float64)
    wanted = recorded.vectors["f64"]
    min_cosine, max_error = FLOORS[dtype]
    assert sum(len(row) >= 256 for row in recorded.rows) >= 4
    assert np.sum(found * wanted, axis=1).min() >= min_cosine
    assert np.abs(found - wanted).max() <= max_error


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_stored_in_bfloat16_agree_with_the_reference_in_any_batch(dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model, "bf16")
    rows = [*recorded.rows[:14], *(row[:-1] for row in recorded.rows[2:14])]
    with loaded_model(reference_plugin, tmp_path, max_tokens=recorded.longest) as model:
        wanted = reference_plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        alone = np.concatenate([embedded(model, [row]) for row in rows])
        order = np.random.default_rng(8).permutation(len(rows))
        together = embedded(model, [rows[place] for place in order])
    assert together.tobytes() == alone[order].tobytes()
    assert np.sum(alone.astype(np.float64) * wanted, axis=1).min() >= FLOORS[dtype][0]
    assert np.abs(alone - wanted).max() <= FLOORS[dtype][1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    edges = seeded_rows([31, 32, 33, 127, 128, 129, 255, 256, 257, 511, 512, 513], recorded.model.vocab)
    rows = [*edges, *recorded.rows[:12], *(row[:-1] for row in recorded.rows[2:12])]
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        alone = [digests(model, [row])[0] for row in rows]
        for seed in (1, 2):
            order = np.random.default_rng(seed).permutation(len(rows))
            assert digests(model, [rows[place] for place in order]) == [alone[place] for place in order]
        assert set(digests(model, [rows[1]] * 7)) == {alone[1]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_scores_agree_with_transformers_in_any_batch(name: str, dtype: DType, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, name)
    logits = recorded.logits["f64"]
    write_qwen3(tmp_path, recorded.model, readout_ids=list(recorded.readout))
    runtime = {"operation": "rerank"}
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest, runtime_config=runtime) as model:
        found = plugin.synapse_rerank(model, recorded.rows, ignore_progress)
        again = plugin.synapse_rerank(model, recorded.rows[::-1], ignore_progress)
    assert np.abs(found - 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))).max() <= {"f32": 1e-5, "bf16": 0.02}[dtype]
    assert again[::-1].tobytes() == found.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_give_the_bits_of_one_graph(dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "fours")
    rows = recorded.rows[:8]
    write_qwen3(tmp_path, recorded.model)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=recorded.longest) as model:
        whole = digests(model, rows)
        monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
        assert digests(model, rows) == whole


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], Any]:
    """A tiny model, rows up to the 8,192 tokens of the longest lane, and what the reference makes of them."""
    tiny = TinyQwen3(42, 16, 2, 2, 1, 10, 24, 97, 8192, tied=True)
    directory = tmp_path_factory.mktemp("long")
    write_qwen3(directory, tiny)
    rows = seeded_rows([8191, 8192, 1025], 97)
    with loaded_model(reference_plugin, directory, max_tokens=8192) as model:
        wanted = reference_plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)
    return directory, rows, wanted


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_longest_rows_run_in_segments_and_agree_with_the_reference(
    long_rows: tuple[Path, list[Any], Any], dtype: DType
) -> None:
    directory, rows, wanted = long_rows
    seen: list[int] = []
    with loaded_model(plugin, directory, dtype=dtype, max_tokens=8192) as model:
        found = plugin.synapse_embed(model, batch_of(rows, "last"), lambda done, phase: seen.append(done))
        assert digests(model, rows[::-1]) == [vector_digest(vector) for vector in found[::-1]]
    assert seen == [1, 2, 3, 4, 5, 6]
    assert np.sum(found.astype(np.float64) * wanted, axis=1).min() >= FLOORS[dtype][0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_end_of_a_row_comes_from_its_count_and_not_from_the_padding(dtype: DType, tmp_path: Path) -> None:
    """Padded positions hold id 0; a row that itself ends in zeros keeps them."""
    tiny = TinyQwen3(41, 32, 2, 4, 2, 10, 48, 97, 64, tied=True)
    write_qwen3(tmp_path, tiny)
    row = seeded_rows([20], 97)[0]
    zeros = np.zeros(1, np.int32)
    longer = [np.concatenate([row, *[zeros] * times]) for times in (0, 1, 2, 5)]
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=64) as model:
        together = digests(model, longer)
        assert together == [digests(model, [each])[0] for each in longer]
    assert len(set(together)) == 4


def heads_in_turn(x: Any, heads: int) -> Any:
    """Repeat the key heads as a whole, so that query head n reads key head n modulo their number."""
    held = nodes.static(x, 1)
    return x if held == heads else nodes.out(opset.tile(x, nodes.integers(1, heads // held, 1, 1)))


def one_row_early(ops: Any, x: Any, batch: Any) -> Any:
    index = nodes.spread(opset.maximum(opset.subtract(batch.counts, nodes.integer(2)), nodes.integer(0)), 1)
    return nodes.out(opset.gather(x, index, nodes.integer(1), 1))


def no_norm(ops: Any, cfg: Any, name: str, h: Any, table: Any, batch: Any) -> Any:
    return ops.rope(h, table, batch)


FAULTS = {
    "key heads in turn": (attention_graph, "shared_heads", heads_in_turn),
    "pooled one row early": (OpenVinoOps, "last_row", one_row_early),
    "queries and keys not normalised": (qwen3, "_rotated", no_norm),
}


@pytest.mark.parametrize("fault", [*FAULTS, "another rope base"])
def test_a_planted_fault_passes_the_bound_by_far(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recorded_qwen3(FIXTURES, "fours")
    write_qwen3(tmp_path, recorded.model)
    if fault in FAULTS:
        monkeypatch.setattr(*FAULTS[fault])
    else:
        read = engine_module._read_config
        monkeypatch.setattr(engine_module, "_read_config", lambda *given: replace(read(*given), theta=5e5))
    with loaded_model(plugin, tmp_path, dtype="f32", max_tokens=recorded.longest) as model:
        found = embedded(model, recorded.rows[:6])
    assert np.abs(found - recorded.vectors["f64"][:6]).max() > 10 * FLOORS["f32"][1]
