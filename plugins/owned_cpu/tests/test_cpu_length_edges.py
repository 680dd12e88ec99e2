"""Lengths at which something changes, up to the longest: the reference's numbers, and one set of bits for each row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from synapse_owned_cpu import plugin

from synapse_host.hookspecs import DType, Pooling
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine import reference_plugin
from synapse_host.testing.engine_runs import loaded_model, seeded_rows, vector_digest
from synapse_host.testing.models.recorded_encoders import embedded
from synapse_host.testing.models.tiny_encoders import TinyXlmRoberta
from synapse_host.testing.models.tiny_models import TinyBert, TinyModel, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3

DTYPES = plugin.synapse_describe().dtypes
VOCAB, LONGEST = 101, 8192
EDGES = [31, 32, 33, 127, 128, 129, 255, 256, 257, 319, 320, 321, 511, 512, 513, 1023, 1024, 1025]
#: 64 rows, no two of them alike nor of one length; a third of them of 256 tokens and more.
LENGTHS = [*EDGES, *range(1, 31, 2), *range(40, 124, 6), *range(140, 250, 12), 270, 300, 340, 400, 450, 600, 700]
MODELS: Mapping[str, TinyModel] = {
    "bert": TinyBert(61, 24, 2, 3, 37, VOCAB, LONGEST),
    "xlm-roberta": TinyXlmRoberta(TinyBert(62, 24, 2, 3, 37, VOCAB, LONGEST, layer_norm_eps=1e-5)),
    "modernbert": TinyModernBert(63, 24, 3, 3, 37, VOCAB, LONGEST, span=128),
    "qwen3": TinyQwen3(64, 48, 2, 4, 2, 16, 60, VOCAB, LONGEST, tied=True),
}
#: As few layers as have every kind: what a token costs at 8,192 is attention.
LONG_MODELS: Mapping[str, TinyModel] = {
    "bert": TinyBert(61, 24, 1, 2, 37, VOCAB, LONGEST),
    "xlm-roberta": TinyXlmRoberta(TinyBert(62, 24, 1, 2, 37, VOCAB, LONGEST, layer_norm_eps=1e-5)),
    "modernbert": TinyModernBert(63, 24, 2, 2, 37, VOCAB, LONGEST, span=128),
    "qwen3": TinyQwen3(64, 24, 1, 2, 1, 16, 37, VOCAB, LONGEST, tied=True),
}
POOLINGS: Mapping[str, Pooling] = {"qwen3": "last"}
#: Least cosine to the reference; a decoder in bfloat16 is held to the floor of its own tests.
FLOORS = {(name, dtype): END_TO_END[dtype].min_cosine for name in MODELS for dtype in DTYPES} | {
    ("qwen3", "bf16"): 0.9998
}


def test_the_rows_are_64_and_distinct() -> None:
    rows = seeded_rows(LENGTHS, VOCAB)
    assert len({row.tobytes() for row in rows}) == len(set(LENGTHS)) == len(rows) == 64
    assert sum(length >= 256 for length in LENGTHS) >= 16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_rows_of_64_lengths_and_at_every_edge(name: str, dtype: DType, tmp_path: Path) -> None:
    rows, pooling = seeded_rows(LENGTHS, VOCAB), POOLINGS.get(name, "mean")
    write_model(tmp_path, MODELS[name])
    with loaded_model(reference_plugin, tmp_path, max_tokens=LONGEST) as model:
        wanted = embedded(reference_plugin, model, rows, pooling).astype(np.float64)
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=LONGEST) as model:
        found = embedded(plugin, model, rows, pooling)
        alone = [embedded(plugin, model, [row], pooling)[0] for row in rows]
        copies = embedded(plugin, model, [*rows[:9], *(row[:-1] for row in rows if len(row) > 1), *rows[:9]], pooling)
    assert np.sum(found * wanted, axis=1).min() >= FLOORS[name, dtype]
    assert [vector_digest(vector) for vector in alone] == [vector_digest(vector) for vector in found]
    assert [vector_digest(vector) for vector in [*copies[:9], *copies[-9:]]] == [
        vector_digest(vector) for vector in [*found[:9], *found[:9]]
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
def test_the_two_longest_rows_differ_and_have_their_bits_in_any_batch(name: str, dtype: DType, tmp_path: Path) -> None:
    short, shorter, longest = *seeded_rows([40, LONGEST - 1], VOCAB), seeded_rows([LONGEST], VOCAB, seed=1)[0]
    pooling = POOLINGS.get(name, "mean")
    write_model(tmp_path, LONG_MODELS[name])
    with loaded_model(plugin, tmp_path, dtype=dtype, max_tokens=LONGEST) as model:
        together = embedded(plugin, model, [longest, short, shorter, longest[:-1]], pooling)
        alone = [embedded(plugin, model, [row], pooling)[0] for row in (longest, short, shorter)]
    assert [vector_digest(vector) for vector in together[:3]] == [vector_digest(vector) for vector in alone]
    assert np.linalg.norm(together, axis=1) == pytest.approx([1.0] * 4, abs=1e-3)
    # The last token counts: one row is the other without it.
    assert together[0].tobytes() != together[3].tobytes()
