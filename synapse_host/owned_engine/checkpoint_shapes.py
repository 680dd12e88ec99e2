"""The tensors of a checkpoint by name and shape alone, for whoever must know sizes before a byte of them is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from synapse_host.hookspecs import LoadSpec
from synapse_host.model_files.safetensors_header import TensorEntry, read_safetensors_header
from synapse_host.model_files.shard_index import MAX_INDEX_BYTES, read_shard_index
from synapse_host.owned_engine.weights import PREFIXES, CheckpointWeights, StoredTensor

_NOTHING = memoryview(b"")


def checkpoint_shapes(spec: LoadSpec) -> CheckpointWeights:
    """Every tensor of the checkpoint of ``spec``, with its shape and without its numbers; only headers are read.

    Faults that a header alone does not show, and shards that were not given, are left to whoever reads the tensors.

    Raises:
        ValueError: a header or the index lies about its file.
        OSError: a descriptor cannot be read.

    """
    shapes: dict[str, StoredTensor] = {}
    for header in _headers(spec):
        for name, entry in header.items():
            shapes[_without_prefix(name)] = StoredTensor(name, entry.dtype, entry.shape, _NOTHING)
    return CheckpointWeights(shapes)


def _headers(spec: LoadSpec) -> Iterator[Mapping[str, TensorEntry]]:
    size = os.fstat(spec.artifact_fd).st_size
    if not spec.shards:
        yield read_safetensors_header(spec.artifact_fd, size)
        return
    index = read_shard_index(os.pread(spec.artifact_fd, min(size, MAX_INDEX_BYTES + 1), 0))
    for file in index.files:
        descriptor = spec.shards.get(file)
        if descriptor is not None:
            yield read_safetensors_header(descriptor, os.fstat(descriptor).st_size)


def _without_prefix(name: str) -> str:
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
