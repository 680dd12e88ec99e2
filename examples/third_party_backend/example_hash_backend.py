"""An example backend: embeds by hashing token ids. It shows the plugin contract, not a model."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

#: The plugin API this module was written for: a literal, so that a newer host notices.
PLUGIN_API = 1
#: Part of the identity of every vector: raise it when the numbers change.
ENGINE_VERSION = "1"
#: Little-endian 16-bit integers of the hash become numbers in [-1, 1).
_SCALE = np.float32(1 / 32768)

Vector = npt.NDArray[np.float32]


@dataclass(slots=True)
class HashModel:
    """What ``synapse_load`` returns: the two facts the worker reads, the key of the hash, and what a row may hold."""

    dims: int
    key: bytes
    vocab_size: int
    max_tokens: int
    buckets: Sequence[int] | None = None

    def token_vector(self, token_id: int) -> Vector:
        """The vector of one token, a function of the weight file and the token alone."""
        digest = hashlib.shake_128(self.key + token_id.to_bytes(4, "little")).digest(2 * self.dims)
        return np.frombuffer(digest, dtype="<i2").astype(np.float32) * _SCALE


@hookimpl
def synapse_describe() -> BackendDescription:
    """Say what the backend is; touches no device."""
    return BackendDescription(
        backend="example-hash",
        engine="example-hash",
        engine_version=ENGINE_VERSION,
        build_flags={"hash": "shake128"},
        tasks=("embed",),
        model_formats=("safetensors-package",),
        families=("bert",),
        dtypes=("f32",),
        device_class="cpu",
        platforms=(),
        extra="",
        owned=False,
        abort_capable=False,
        plugin_api=PLUGIN_API,
        batch_invariant=True,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """Report the facts beside their floor; a real backend would ask its driver here."""
    cores = os.cpu_count() or 0
    required = {"cores": 1}
    observed = {"cores": cores, "machine": platform.machine()}
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
    """Load one model; hooks leave out the arguments they do not need, here ``progress``."""
    return HashModel(
        dims=_count(spec.config, "hidden_size"),
        key=bytes.fromhex(spec.artifact_digest),
        vocab_size=_count(spec.config, "vocab_size"),
        max_tokens=spec.max_tokens,
    )


@hookimpl
def synapse_embed(model: HashModel, batch: EmbedBatch, progress: Progress) -> Vector:
    """Embed every row and report each one after it is done."""
    _check_rows(model, batch)
    vectors = np.empty((len(batch.counts), model.dims), dtype=np.float32)
    start = 0
    for row, count in enumerate(batch.counts):
        tokens = [model.token_vector(int(token_id)) for token_id in batch.ids[start : start + count]]
        vectors[row] = _finish(_pool(np.stack(tokens), batch.pooling), normalize=batch.normalize)
        start += count
        progress(row + 1, "inference")
    return vectors


@hookimpl
def synapse_unload(model: HashModel) -> bool:
    """Nothing is held outside the model object, so dropping it is all."""
    return True


def _count(config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise PluginError("config_invalid", f"{name} of config.json is {size!r}; it must be a positive integer")
    return size


def _check_rows(model: HashModel, batch: EmbedBatch) -> None:
    """Refuse what has no vector, before any work is done; the host never sends such rows, but it must not matter."""
    outside = batch.ids[(batch.ids < 0) | (batch.ids >= model.vocab_size)]
    if outside.size:
        known = f"the vocabulary of {model.vocab_size}"
        raise PluginError("invalid_request", f"token id {outside[0]} is outside {known}; use the model's own tokenizer")
    longest = max(batch.counts)
    if longest > model.max_tokens:
        raise PluginError("invalid_request", f"a row of {longest} tokens passes {model.max_tokens}; truncate it first")


def _pool(tokens: Vector, pooling: Pooling) -> Vector:
    if pooling != "mean":
        chosen: Vector = tokens[0 if pooling == "cls" else -1]
        return chosen
    # Summed one token after another, so the result does not depend on how a library splits a sum.
    total = np.zeros(tokens.shape[1], dtype=np.float32)
    for token in tokens:
        total += token
    return total / np.float32(len(tokens))


def _finish(vector: Vector, *, normalize: bool) -> Vector:
    return vector / np.linalg.norm(vector) if normalize else vector
