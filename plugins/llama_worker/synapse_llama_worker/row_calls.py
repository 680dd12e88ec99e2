"""Cuts rows into calls the engine takes and yields the pooled output of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from synapse_host.hookspecs import Progress
from synapse_llama_worker.call_arrays import Int32
from synapse_llama_worker.context import Context, Float32
from synapse_llama_worker.limits import Limits


def plan_calls(counts: Sequence[int], limits: Limits) -> Iterator[range]:
    """Neighbouring rows, as many as one call takes; every count fits one call alone."""
    first, tokens = 0, 0
    for index, count in enumerate(counts):
        if index > first and (index - first == limits.sequences or tokens + count > limits.batch):
            yield range(first, index)
            first, tokens = index, 0
        tokens += count
    if len(counts) > first:
        yield range(first, len(counts))


def pooled_rows(context: Context, rows: Sequence[Int32], width: int, progress: Progress) -> Float32:
    """The pooled output of each row, float32 [rows, width], in order; progress counts tokens computed."""
    out = np.empty((len(rows), width), np.float32)
    done = 0
    for call in plan_calls([len(row) for row in rows], context.limits):
        context.forget()
        context.compute([rows[index] for index in call])
        for sequence, index in enumerate(call):
            out[index] = context.pooled(sequence, width)
        done += sum(len(rows[index]) for index in call)
        progress(done, "inference")
    context.forget()
    return out
