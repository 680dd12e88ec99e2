"""Qwen3 on the numpy reference against what transformers computed (scripts/make_qwen3_fixtures.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from synapse_host.families import qwen3
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.owned_engine import engine as engine_module
from synapse_host.owned_engine import reference_plugin
from synapse_host.owned_engine.segments import segments_for
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, vector_digest
from synapse_host.testing.models.recorded_qwen3 import RecordedQwen3, recorded_qwen3
from synapse_host.testing.models.tiny_qwen3 import TINY_QWEN3S, write_qwen3

FIXTURES = Path(__file__).parents[1] / "fixtures"
#: Largest error of a component of a unit vector against transformers in float32, and against float64.
MAX_ERROR, MAX_ERROR_F64 = 2e-6, 2e-7


def recording(name: str, directory: Path) -> RecordedQwen3:
    recorded = recorded_qwen3(FIXTURES, name)
    write_qwen3(directory, recorded.model)
    return recorded


def embedded(model: Any, rows: list[Any]) -> Any:
    return reference_plugin.synapse_embed(model, batch_of(rows, "last"), ignore_progress)


def vectors_of(recorded: RecordedQwen3, directory: Path) -> Any:
    with loaded_model(reference_plugin, directory, max_tokens=recorded.longest) as model:
        return embedded(model, recorded.rows)


@pytest.mark.parametrize("name", sorted(TINY_QWEN3S))
def test_tiny_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    recorded = recording(name, tmp_path)
    found = vectors_of(recorded, tmp_path)
    assert len({len(row) for row in recorded.rows}) == 24
    assert np.abs(found - recorded.vectors["f32"]).max() <= MAX_ERROR
    assert np.abs(found - recorded.vectors["f64"]).max() <= MAX_ERROR_F64
    assert np.sum(found.astype(np.float64) * recorded.vectors["f64"], axis=1).min() >= 0.999999


def change_config(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    read = engine_module._read_config
    monkeypatch.setattr(engine_module, "_read_config", lambda *arguments: change(read(*arguments)))


def change_op(monkeypatch: pytest.MonkeyPatch, op: str, change: Any) -> None:
    call = getattr(ReferenceOps, op)
    monkeypatch.setattr(ReferenceOps, op, lambda *args, **kwargs: change(call, *args, **kwargs))


def without_norm(which: str) -> Any:
    """Rotate queries (``q``) or keys (``k``) as they are."""
    rotated = qwen3._rotated

    def plain(ops: Any, cfg: Any, name: str, h: Any, table: Any, batch: Any) -> Any:
        return ops.rope(h, table, batch) if name.endswith(f".{which}") else rotated(ops, cfg, name, h, table, batch)

    return plain


def keys_in_turn(call: Any, ops: Any, q: Any, k: Any, v: Any, batch: Any, **rules: Any) -> Any:
    """Query head n reads key head n modulo the number of them."""
    k, v = (np.tile(each, (1, q.shape[1] // each.shape[1], 1, 1)) for each in (k, v))
    return call(ops, q, k, v, batch, **rules)


def other_scale(call: Any, ops: Any, q: Any, k: Any, v: Any, batch: Any, **rules: Any) -> Any:
    return call(ops, q, k, v, batch, **{**rules, "scale": 1 / math.sqrt(66 / 8)})


def both_ways(call: Any, *args: Any, **rules: Any) -> Any:
    return call(*args, **{**rules, "causal": False})


def one_row_early(call: Any, ops: Any, x: Any, batch: Any) -> Any:
    return call(ops, x, replace(batch, counts=np.maximum(batch.counts - 1, 1)))


def last_padded_row(call: Any, ops: Any, x: Any, batch: Any) -> Any:
    return x[:, -1:]


FAULTS: Mapping[str, Any] = {
    "another rope base": lambda patch: change_config(patch, lambda c: replace(c, theta=5e5)),
    "another eps": lambda patch: change_config(patch, lambda c: replace(c, eps=1e-5)),
    "queries not normalised": lambda patch: patch.setattr(qwen3, "_rotated", without_norm("q")),
    "keys not normalised": lambda patch: patch.setattr(qwen3, "_rotated", without_norm("k")),
    "key heads in turn": lambda patch: change_op(patch, "attention", keys_in_turn),
    "scaled by hidden / heads": lambda patch: change_op(patch, "attention", other_scale),
    "not causal": lambda patch: change_op(patch, "attention", both_ways),
    "pooled one row early": lambda patch: change_op(patch, "last_row", one_row_early),
    "pooled at the padded end": lambda patch: change_op(patch, "last_row", last_padded_row),
    "gate and up exchanged": lambda patch: change_op(patch, "swiglu", lambda call, ops, a, b: call(ops, b, a)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_passes_the_bound_by_far(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recording("fours", tmp_path)
    short = replace(recorded, rows=recorded.rows[:6])
    FAULTS[fault](monkeypatch)
    assert np.abs(vectors_of(short, tmp_path) - recorded.vectors["f32"][:6]).max() > 4 * MAX_ERROR


@pytest.mark.parametrize("name", ["one_key_head", "pairs"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(name: str, tmp_path: Path) -> None:
    recorded = recording(name, tmp_path)
    # Rows of one bucket share a call: each length comes twice more, one and two tokens shorter.
    rows = [*recorded.rows[:10], *(row[:-1] for row in recorded.rows[2:10]), *(row[:-2] for row in recorded.rows[4:10])]
    with loaded_model(reference_plugin, tmp_path, max_tokens=recorded.longest) as model:
        alone = [vector_digest(embedded(model, [row])[0]) for row in rows]
        order = np.random.default_rng(6).permutation(len(rows))
        together = [vector_digest(vector) for vector in embedded(model, [rows[place] for place in order])]
    assert together == [alone[place] for place in order]


def test_segments_give_the_bits_of_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = recording("fours", tmp_path)
    rows = recorded.rows[:5]
    with loaded_model(reference_plugin, tmp_path, max_tokens=recorded.longest) as model:
        whole = embedded(model, rows)
        monkeypatch.setattr(engine_module, "segments_for", lambda blocks, tokens: segments_for(blocks, 4096))
        assert embedded(model, rows).tobytes() == whole.tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_half_precision_checkpoints_are_read(dtype: Any, tmp_path: Path) -> None:
    recorded = recorded_qwen3(FIXTURES, "pairs")
    write_qwen3(tmp_path, recorded.model, dtype)
    short = replace(recorded, rows=recorded.rows[:6])
    cosines = np.sum(vectors_of(short, tmp_path) * recorded.vectors["f64"][:6], axis=1)
    assert cosines.min() >= 0.999
    assert cosines.max() < 1 - 1e-9
