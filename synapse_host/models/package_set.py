"""A model that comes as a package set: zipped ``.mlmodelc`` files of fixed lengths, the first in ``files.model``.

The others are ``files.extra`` in their order. A safetensors file among those is no package but the checkpoint the
packages were made of: a probe computes its reference from it, and it is no part of the model's identity.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.model_files.architectures import MAX_SIZE, Architecture
from synapse_host.model_files.compiled_package import NAMELESS_FAMILY, PackageFault, read_package_shape
from synapse_host.model_files.source_files import digest_file, open_regular, resolve_inside
from synapse_host.models.file_errors import artifact_invalid
from synapse_host.models.load_request import LoadRequest, NamedFile
from synapse_host.models.registered_model import CHECKPOINT_SUFFIX, WeightShard


def packages_of(request: LoadRequest) -> list[NamedFile]:
    """The files of a request that are packages, in their order."""
    return [request.model, *(file for file in request.extra if not file[0].endswith(CHECKPOINT_SUFFIX))]


def longest_package(request: LoadRequest) -> int:
    """The longest row any package takes, as its archive describes itself.

    Raises:
        ArtifactInvalid: a file is missing or is no package; details ``file``.
        InvalidRequest: a file leads out of the directory.

    """
    return max(_length(Path(request.directory), name) for name, _ in packages_of(request))


def bounded(architecture: Architecture | None, longest: int) -> Architecture:
    """The sizes of the model: of its config.json, or unknown but for the longest row, which no package passes."""
    if architecture is None:
        return Architecture(NAMELESS_FAMILY, NAMELESS_FAMILY, 0, 0, MAX_SIZE, longest)
    return replace(architecture, max_positions=min(architecture.max_positions, longest))


def read_extra(request: LoadRequest) -> tuple[WeightShard, ...]:
    """Every file beside the first, held against its digest.

    Raises:
        ArtifactInvalid: one is missing or another than it should be; details ``file``.
        InvalidRequest: one leads out of the directory, or there are two checkpoints.

    """
    files = tuple(_held(Path(request.directory), *file) for file in request.extra)
    checkpoints = [file.file for file in files if file.file.endswith(CHECKPOINT_SUFFIX)]
    if len(checkpoints) > 1:
        raise InvalidRequest(
            f"files.extra holds {len(checkpoints)} checkpoints and the packages were made of one; name that one",
            details={"files": checkpoints[:20]},
        )
    return files


def set_digest(model_sha256: str, extra: Sequence[WeightShard]) -> str:
    """The identity of the packages: one digest over all of them, by role and order."""
    packages = [file.sha256 for file in extra if not file.file.endswith(CHECKPOINT_SUFFIX)]
    roles = [["model", model_sha256], *([f"extra:{place}", sha256] for place, sha256 in enumerate(packages))]
    return sha256_hex(canonical_json(roles))


def _length(directory: Path, name: str) -> int:
    try:
        path = resolve_inside(directory, name)
        with open_regular(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            return read_package_shape(file).length
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message) from fault
    except PackageFault as fault:
        # What the reader advises comes from nearer to the fault.
        advice = "" if "; " in str(fault) else "; name zipped .mlmodelc files in files.model and files.extra"
        raise artifact_invalid(name, f"{name} is no package of a set: {fault}{advice}") from fault


def _held(directory: Path, name: str, expected: str | None) -> WeightShard:
    try:
        path = resolve_inside(directory, name)
        actual = digest_file(path)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message, expected_sha256=expected) from fault
    if expected is not None and actual.sha256 != expected:
        raise artifact_invalid(
            name,
            f"file {str(path)!r} has sha256 {actual.sha256}, not the expected {expected}; restore it and load again",
            expected_sha256=expected,
            actual=actual,
        )
    return WeightShard(name, str(path), actual.sha256, actual.size)
