"""The magnifying models: one for every family, the same on every machine, and turned by small mistakes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import EmbedBatch
from synapse_host.magnifiers.magnifier import SEPARATOR, VOCAB
from synapse_host.magnifiers.table import MAGNIFIED, magnifier_of
from synapse_host.ops.dtypes import rounded
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import TensorOps
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.family_table import FAMILIES, family_named
from synapse_host.owned_engine.reference_backend import ReferenceBackend
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.engine_runs import ignore_progress
from synapse_host.tolerances import FLOORS

Spoil = Callable[[Any], Any]


def test_every_family_has_one() -> None:
    assert set(MAGNIFIED) == set(FAMILIES)


@pytest.mark.parametrize(
    ("family", "digest"),
    [
        ("bert", "052a142811868abfd8d7b253b990cf785e2f15d5ce16ed5783b078e2ae8c738d"),
        ("xlm-roberta", "20c970ea7baa14a588dc5d66f854a7859093fec28775914d35b202a82822e7fc"),
        ("modernbert", "704c7e8e65c62e60481ff59cde514cf5626cecdd63be5706790d1d205b585204"),
        ("qwen3", "b1d8d7d461da726772653788eb439f7a40d0d19866da22298893e6c57ec176d4"),
        ("static", "e5d1bf2ef7692a4dc3176c73c3634d7c8d61938d0c68b8f2b652938998045916"),
    ],
)
def test_its_weights_and_rows_are_frozen(family: str, digest: str) -> None:
    model = magnifier_of(family)
    written = model.safetensors() + repr((model.config, model.rows, model.pairs)).encode()
    assert hashlib.sha256(written).hexdigest() == digest


@pytest.mark.parametrize("family", MAGNIFIED)
def test_its_rows_are_distinct_and_within_the_vocabulary(family: str) -> None:
    model = magnifier_of(family)
    long_rows = [tuple(row) for row in model.rows if len(row) > 2]
    assert len(set(long_rows)) == len(long_rows) >= 30
    assert all(0 <= token < VOCAB for row in model.rows for token in row)
    assert (
        max(map(len, model.rows))
        < model.max_tokens
        <= FAMILIES[family].config(model.config, pooling="mean", normalize=True).positions
    )
    assert all(pair[-1] == SEPARATOR and pair.count(SEPARATOR) == 2 for pair in model.pairs)


def vectors(family: str, spoil: Spoil) -> np.ndarray[Any, Any]:
    model = magnifier_of(family)
    settings = ModelSettings(family_named(family), model.config, "f32", model.max_tokens, 1)
    backend = ReferenceBackend(CheckpointWeights.of_arrays(model.tensors), max_tokens=model.max_tokens)
    backend._ops = spoil(backend._ops)
    rows = [np.array(row, dtype=np.int32) for row in model.rows[::2]]
    names = [str(place) for place in range(len(rows))]
    batch = EmbedBatch(np.concatenate(rows), [len(row) for row in rows], names, model.pooling, True)
    return OwnedEngine(backend, settings).embed(batch, ignore_progress).astype(np.float64)


def spoiled(**mistakes: Callable[..., Any]) -> Spoil:
    """The operations with some of them replaced; each replacement gets the sound ones first."""

    class Spoiled(ReferenceOps):
        pass

    def spoil(ops: TensorOps) -> TensorOps:
        made = object.__new__(Spoiled)
        made.__dict__.update(ops.__dict__)
        for name, mistake in mistakes.items():
            made.__dict__[name] = lambda *args, mistake=mistake, **how: mistake(ops, *args, **how)
        return made

    return spoil


EPS = spoiled(
    layer_norm=lambda ops, x, w, b, eps: ops.layer_norm(x, w, b, 1e-5 if eps < 1e-6 else 1e-12),
    add_layer_norm=lambda ops, x, r, w, b, eps: ops.add_layer_norm(x, r, w, b, 1e-5 if eps < 1e-6 else 1e-12),
    rms_norm=lambda ops, x, w, eps: ops.rms_norm(x, w, 1e-5),
    add_rms_norm=lambda ops, x, r, w, eps: ops.add_rms_norm(x, r, w, 1e-5),
)
FORM = spoiled(
    linear=lambda ops, x, w, b=None, act=None: ops.linear(x, w, b, act and "gelu_tanh"),
    geglu=lambda ops, x, kind: ops.geglu(x, "tanh"),
    swiglu=lambda ops, gate, up: (gate / (1 + np.exp(-1.702 * gate)) * up).astype(np.float32),
)
POSITIONS = spoiled(positions=lambda ops, batch, table, first=0: ops.positions(batch, table, first + 1))
BASE = spoiled(rope_table=lambda ops, theta, d, scaling=None: ops.rope_table(1e4 if theta > 1e5 else 1.6e5, d))
HALF_ANGLES = spoiled(rope_table=lambda ops, theta, d, scaling=None: rounded(ops.rope_table(theta, d), "bf16"))
WINDOW = spoiled(
    attention=lambda ops, q, k, v, batch, **how: ops.attention(
        q, k, v, batch, **{**how, "window": how.get("window") and how["window"] - 1}
    )
)
CAUSAL = spoiled(attention=lambda ops, q, k, v, batch, **how: ops.attention(q, k, v, batch, **{**how, "causal": False}))
MASK = spoiled(
    attention=lambda ops, q, k, v, batch, **how: ops.attention(
        q, k, v, replace(batch, counts=batch.counts + 4096), **how
    )
)
PADDED = spoiled(mean_rows=lambda ops, x, batch: x.mean(axis=1, keepdims=True))
NEIGHBOUR = spoiled(embedding=lambda ops, ids, table: ops.embedding(ids, np.roll(table, 1, axis=0)))
FIRST = spoiled(mean_rows=lambda ops, x, batch: ops.first_row(x, batch))
#: Mistakes each family's model must turn by more than bf16 may.
TURNED = {
    "bert": (EPS, FORM, POSITIONS, MASK),
    "xlm-roberta": (EPS, FORM, POSITIONS, MASK),
    "modernbert": (EPS, FORM, BASE, WINDOW, MASK),
    "qwen3": (EPS, FORM, BASE, CAUSAL),
    "static": (PADDED, NEIGHBOUR, FIRST),
}


@pytest.mark.parametrize("family", MAGNIFIED)
def test_a_small_mistake_turns_it_further_than_bf16_may(family: str) -> None:
    sound = vectors(family, spoiled())
    for place, mistake in enumerate(TURNED[family]):
        cosine = np.einsum("ij,ij->i", sound, vectors(family, mistake)).min()
        assert cosine < FLOORS["bf16"].magnified_min_cosine, (place, cosine)


def test_angles_in_half_precision_show_in_float32() -> None:
    cosine = np.einsum("ij,ij->i", vectors("qwen3", spoiled()), vectors("qwen3", HALF_ANGLES)).min()
    assert cosine < FLOORS["f32"].magnified_min_cosine
