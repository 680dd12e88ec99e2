"""A backend of synapse-host for static embeddings: a text is the mean of its tokens' rows in a table.

It computes the host's family ``static`` by itself, in plain numpy. The host has a reference for that family, so it can
measure these numbers, and may serve them once it has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import (
    BackendDescription,
    CapabilityEvidence,
    EmbedBatch,
    LoadedModel,
    LoadSpec,
    PluginError,
    Pooling,
    Progress,
    hookimpl,
)
from synapse_host.owned_engine.kernel_revision import kernel_revision, manifest_digest
from synapse_host.owned_engine.weights import CheckpointWeights

#: The plugin API this module was written for: a literal, so that a newer host notices.
PLUGIN_API = 1
#: The engine's name in every fingerprint, and the families it computes.
ENGINE = "example-static"
FAMILIES = ("static",)
#: The sources that decide a vector's bits.
KERNELS = (Path(__file__),)
#: How near to the reference these vectors are promised to be.
TOLERANCES = {"cosine_f32": "0.999999"}

Vectors = npt.NDArray[np.float32]


@dataclass(slots=True)
class TableModel:
    """What ``synapse_load`` returns: the table, float32 [vocabulary, dims], and the tokens a row may have."""

    table: Vectors
    max_tokens: int
    buckets: Sequence[int] | None = None

    @property
    def dims(self) -> int:
        """Width of a vector."""
        return int(self.table.shape[1])


@hookimpl
def synapse_describe() -> BackendDescription:
    """Say what the backend is; touches no device."""
    return BackendDescription(
        backend="example-static",
        engine=ENGINE,
        engine_version=version("example-static-backend"),
        build_flags={"sum": "f64"},
        tasks=("embed",),
        model_formats=("safetensors-package",),
        families=FAMILIES,
        dtypes=("f32",),
        device_class="cpu",
        platforms=(),
        extra="",
        owned=True,
        abort_capable=False,
        kernel_revision=kernel_revision(KERNELS),
        manifest_digest=manifest_digest(engine=ENGINE, families=FAMILIES, kernels=KERNELS, tolerances=TOLERANCES),
        plugin_api=PLUGIN_API,
        batch_invariant=True,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """Report the facts beside their floor; a real backend would ask its driver here."""
    cores = os.cpu_count() or 0
    required = {"cores": 1}
    observed = {"cores": cores, "numpy": np.__version__}
    if cores < required["cores"]:
        return CapabilityEvidence(
            "refused",
            required,
            observed,
            reason="device_below_floor",
            reason_detail="no_processor",
            message="this machine reports no processor; run the host elsewhere",
        )
    return CapabilityEvidence("ok", required, observed)


@hookimpl
def synapse_load(spec: LoadSpec) -> LoadedModel:
    """Read the table; hooks leave out the arguments they do not need, here ``progress`` and ``settings``."""
    if spec.family not in FAMILIES:
        raise PluginError("model_unsupported", f"family {spec.family!r} is not {' or '.join(FAMILIES)}")
    shape = _size(spec.config, "vocab_size"), _size(spec.config, "hidden_size")
    try:
        weights = CheckpointWeights.open(spec.artifact_fd, os.fstat(spec.artifact_fd).st_size)
        table = weights.shaped_entry("embedding.weight", shape).to_float32()
    except ValueError as fault:
        raise PluginError("artifact_invalid", f"{spec.artifact_path}: {fault}") from fault
    unusable = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if unusable.size:
        where = f"row {unusable[0]} of embedding.weight in {spec.artifact_path}"
        raise PluginError("artifact_invalid", f"{where} holds a number that is not finite; get the file again")
    return TableModel(table, spec.max_tokens)


@hookimpl
def synapse_embed(model: TableModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Embed every row and report each one after it is done."""
    _check_rows(model, batch)
    vectors = np.empty((len(batch.counts), model.dims), dtype=np.float32)
    start = 0
    for row, count in enumerate(batch.counts):
        tokens = model.table[batch.ids[start : start + count]]
        vectors[row] = _finished(_pooled(tokens, batch.pooling), normalize=batch.normalize)
        start += count
        progress(row + 1, "inference")
    return vectors


@hookimpl
def synapse_unload(model: TableModel) -> bool:
    """Nothing is held outside the model object, so dropping it is all."""
    return True


def _size(config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if type(size) is not int or size < 1:
        raise PluginError("config_invalid", f"{name} of config.json is {size!r}; it must be a positive integer")
    return size


def _check_rows(model: TableModel, batch: EmbedBatch) -> None:
    """Refuse what has no vector, before any work is done; the host never sends such rows, but it must not matter."""
    rows = len(model.table)
    outside = batch.ids[(batch.ids < 0) | (batch.ids >= rows)]
    if outside.size:
        known = f"the vocabulary of {rows}"
        raise PluginError("invalid_request", f"token id {outside[0]} is outside {known}; use the model's own tokenizer")
    longest = max(batch.counts)
    if longest > model.max_tokens:
        raise PluginError("invalid_request", f"a row of {longest} tokens passes {model.max_tokens}; truncate it first")


def _pooled(tokens: Vectors, pooling: Pooling) -> Vectors:
    if pooling != "mean":
        chosen: Vectors = tokens[0 if pooling == "cls" else -1]
        return chosen
    # Summed in float64: a long text loses nothing, and no other row of the batch takes part.
    mean: Vectors = (tokens.sum(axis=0, dtype=np.float64) / len(tokens)).astype(np.float32)
    return mean


def _finished(vector: Vectors, *, normalize: bool) -> Vectors:
    """At unit length where that is asked for; a vector of zeros stays one, which the host refuses by name."""
    length = np.linalg.norm(vector)
    return vector / length if normalize and length else vector
