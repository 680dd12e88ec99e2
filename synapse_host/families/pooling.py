"""Pooling shared by the embedding families: one vector per row, chosen by token counts."""

from __future__ import annotations

from synapse_host.ops.tensor_ops import Batch, Rows, TensorOps


def pooled(ops: TensorOps, pooling: str, x: Rows, batch: Batch) -> Rows:
    """Rows of S = 1 by ``mean``, ``cls`` (first) or ``last``; raises ``ValueError`` for any other name."""
    if pooling == "mean":
        return ops.mean_rows(x, batch)
    if pooling == "cls":
        return ops.first_row(x, batch)
    if pooling == "last":
        return ops.last_row(x, batch)
    raise ValueError(f"pooling {pooling!r} is not one of mean, cls, last")
