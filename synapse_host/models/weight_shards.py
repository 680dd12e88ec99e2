"""A checkpoint in several safetensors files: found beside its index, digested, and held against it."""

from __future__ import annotations

import os
from pathlib import Path

from synapse_host.errors import ArtifactInvalid
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_file, sha256_hex
from synapse_host.model_files.safetensors_header import SafetensorsFault, read_safetensors_header
from synapse_host.model_files.shard_index import MAX_INDEX_BYTES, ShardIndex, read_shard_index
from synapse_host.model_files.source_files import FileDigest, open_regular, read_file, resolve_inside
from synapse_host.models.file_errors import artifact_invalid
from synapse_host.models.registered_model import WeightShard


def read_shards(directory: str, index: Path, name: str, digest: FileDigest) -> tuple[WeightShard, ...]:
    """Every file the index ``name`` of ``directory`` names, whole and holding the tensors it should.

    Raises:
        ArtifactInvalid: the index or a file is missing, not whole, or not of the other; details ``file``.
        InvalidRequest: a file leads out of the directory.

    """
    try:
        data = read_file(index, limit=MAX_INDEX_BYTES)
        if sha256_hex(data) != digest.sha256:
            raise ValueError("it changed while it was read")
        read = read_shard_index(data)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message) from fault
    except ValueError as fault:
        raise artifact_invalid(name, f"{name}: {fault}; load it again", actual=digest) from fault
    return tuple(_shard(Path(directory), read, file) for file in read.files)


def weights_digest(model_sha256: str, shards: tuple[WeightShard, ...]) -> str:
    """The identity of the weights: the file's own digest, or one over index and files, by role and order."""
    if not shards:
        return model_sha256
    return sha256_hex(canonical_json([["index", model_sha256], *(["shard", shard.sha256] for shard in shards)]))


def _shard(directory: Path, index: ShardIndex, file: str) -> WeightShard:
    try:
        path = resolve_inside(directory, file)
        with open_regular(path) as descriptor:
            size = os.fstat(descriptor).st_size
            index.check(file, read_safetensors_header(descriptor, size))
            return WeightShard(file, str(path), sha256_file(descriptor), size)
    except ArtifactInvalid as fault:
        raise artifact_invalid(file, fault.message) from fault
    except SafetensorsFault as fault:
        text = f"{file} is no whole safetensors file: {fault}; restore it and load again"
        raise artifact_invalid(file, text) from fault
    except ValueError as fault:
        raise artifact_invalid(file, str(fault)) from fault
