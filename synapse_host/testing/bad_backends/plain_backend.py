"""A small backend that keeps every promise: the vectors of a row's tokens, out of the weight file, pooled.

The bad backends of ``planted`` are this text with one edit each, so every line here is one that may go wrong.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import (
    BackendDescription,
    CapabilityEvidence,
    EmbedBatch,
    LoadSpec,
    PluginError,
    Pooling,
    Progress,
    hookimpl,
)
from synapse_host.model_files.safetensors_header import SafetensorsFault, read_safetensors_header

BACKEND = "plain"
TABLE = "embeddings.word_embeddings.weight"

Vectors = npt.NDArray[np.float32]


class TableModel:
    """The token table of one weight file, mapped."""

    buckets: Sequence[int] | None = None

    def __init__(self, spec: LoadSpec) -> None:
        entry = read_safetensors_header(spec.artifact_fd, os.fstat(spec.artifact_fd).st_size)[TABLE]
        if entry.shape != (spec.config.get("vocab_size"), spec.config.get("hidden_size")):
            raise PluginError("config_invalid", f"{TABLE} is {entry.shape}, which config.json does not say")
        self.mapping = mmap.mmap(spec.artifact_fd, 0, access=mmap.ACCESS_READ)
        values = np.frombuffer(memoryview(self.mapping)[entry.start : entry.end], dtype="<f4")
        self.table: Vectors = values.reshape(entry.shape)
        self.dims = self.table.shape[1]
        self.max_tokens = spec.max_tokens

    def close(self) -> None:
        """Let go of the file."""
        del self.table
        self.mapping.close()


@hookimpl
def synapse_describe() -> BackendDescription:
    """Not owned: the numbers are its own."""
    return BackendDescription(
        backend=BACKEND,
        engine="token-table",
        engine_version="1",
        build_flags={},
        tasks=("embed",),
        model_formats=("safetensors-package",),
        families=("bert",),
        dtypes=("f32",),
        device_class="cpu",
        platforms=(),
        extra="",
        owned=False,
        abort_capable=False,
        plugin_api=1,
        batch_invariant=True,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """It runs everywhere."""
    return CapabilityEvidence("ok", required={"cores": 1}, observed={"cores": os.cpu_count()})


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> TableModel:
    """Map the table."""
    try:
        model = TableModel(spec)
    except (SafetensorsFault, KeyError) as fault:
        raise PluginError("artifact_invalid", f"{spec.artifact_path}: {fault}") from fault
    progress(1, "setup")
    return model


@hookimpl
def synapse_embed(model: TableModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Row after row, so that company cannot matter."""
    check(model, batch)
    vectors = np.empty((len(batch.counts), model.table.shape[1]), dtype=np.float32)
    start = 0
    for row, count in enumerate(batch.counts):
        ids = batch.ids[start : start + count]
        vectors[row] = finish(pool(model.table[ids], batch.pooling), normalize=batch.normalize)
        start += count
        progress(row + 1, "inference")
    return vectors


@hookimpl
def synapse_unload(model: TableModel) -> bool:
    """Unmap the table."""
    model.close()
    return True


def check(model: TableModel, batch: EmbedBatch) -> None:
    """Refuse what no vector can stand for; before any work, so that a refused request costs nothing."""
    outside = (batch.ids < 0) | (batch.ids >= len(model.table))
    if outside.any():
        raise PluginError("invalid_request", f"token ids {batch.ids[outside]} are not below {len(model.table)}")
    if max(batch.counts) > model.max_tokens:
        raise PluginError("invalid_request", f"a row of {max(batch.counts)} tokens passes {model.max_tokens}")


def pool(tokens: Vectors, pooling: Pooling) -> Vectors:
    """One vector of a row's token vectors."""
    if pooling == "mean":
        mean: Vectors = tokens.mean(axis=0)
        return mean
    chosen: Vectors = tokens[0 if pooling == "cls" else -1]
    return chosen


def finish(vector: Vectors, *, normalize: bool) -> Any:
    """The vector, of length 1 when asked."""
    return vector / np.linalg.norm(vector) if normalize else vector
