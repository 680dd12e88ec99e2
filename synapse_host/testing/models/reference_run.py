"""A whole model run on any operations, for tests that hold vectors against a fixture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from synapse_host.families.bert import BertConfig
from synapse_host.ops.tensor_ops import Batch, TensorOps
from synapse_host.owned_engine.family_table import FAMILIES, Family, FamilyConfig

#: Rows and padded tokens of one call.
_ROWS, _TOKENS = 16, 2048


def family_vectors(
    family: Family, ops: TensorOps, config: FamilyConfig, sequences: Sequence[Sequence[int]]
) -> npt.NDArray[np.float32]:
    """One vector for each sequence of token ids, in their order, as float32 [n, hidden]."""
    vectors = np.empty((len(sequences), config.hidden_size), dtype=np.float32)
    for group in _groups(sequences):
        vectors[group] = run_family(family, ops, config, padded_batch([sequences[i] for i in group]))
    return vectors


def run_family(family: Family, ops: TensorOps, config: FamilyConfig, batch: Batch) -> npt.NDArray[np.float32]:
    """Stem, every block and the head over one batch, for operations whose result is an array."""
    x = family.stem(ops, config, batch)
    for i in range(config.layers):
        x = family.block(ops, config, i, x, batch)
    vectors: npt.NDArray[np.float32] = ops.result(family.head(ops, config, x, batch))
    return vectors


def bert_vectors(ops: TensorOps, config: BertConfig, sequences: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """``family_vectors`` of a BERT."""
    return family_vectors(FAMILIES["bert"], ops, config, sequences)


def run_bert(ops: TensorOps, config: BertConfig, batch: Batch) -> npt.NDArray[np.float32]:
    """``run_family`` of a BERT."""
    return run_family(FAMILIES["bert"], ops, config, batch)


def padded_batch(sequences: Sequence[Sequence[int]], length: int | None = None, pad_id: int = 0) -> Batch:
    """``sequences`` padded on the right to ``length``, or to the longest of them."""
    counts = np.array([len(sequence) for sequence in sequences], dtype=np.int32)
    ids = np.full((len(sequences), length or int(counts.max())), pad_id, dtype=np.int32)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = sequence
    return Batch(ids, counts)


def _groups(sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indices by length, cut where a call would grow too large."""
    group: list[int] = []
    for i in sorted(range(len(sequences)), key=lambda i: len(sequences[i])):
        if group and (len(group) == _ROWS or (len(group) + 1) * len(sequences[i]) > _TOKENS):
            yield group
            group = []
        group.append(i)
    if group:
        yield group
