"""The files of a model by format: which of them there are, and what the host reads in them before a worker exists.

A safetensors package has its sizes in config.json; a GGUF file carries its own and comes without one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_file, sha256_hex
from synapse_host.model_files.architectures import Architecture, read_architecture
from synapse_host.model_files.compiled_package import MODEL_FORMAT as MLMODELC
from synapse_host.model_files.gguf_cursor import GgufFault
from synapse_host.model_files.gguf_model import MODEL_FORMAT as GGUF
from synapse_host.model_files.gguf_model import GgufModel, read_gguf_model
from synapse_host.model_files.safetensors_header import SafetensorsFault, read_safetensors_header
from synapse_host.model_files.shard_index import INDEX_SUFFIX
from synapse_host.model_files.source_files import FileDigest, digest_file, open_regular, read_file, resolve_inside
from synapse_host.models.file_errors import artifact_invalid
from synapse_host.models.load_request import LoadRequest
from synapse_host.models.package_set import bounded, longest_package
from synapse_host.values import value_object

SAFETENSORS = "safetensors-package"
#: The names model.load assumes where it is told none.
DEFAULT_MODEL, DEFAULT_CONFIG = "model.safetensors", "config.json"
#: What lies there instead where the weights were published in several files.
INDEX_OF_WEIGHTS = f"model{INDEX_SUFFIX}"
#: Bytes a config.json (a few kilobytes) may have; past them the file is not what its name says, and the host will not
#: read it into memory to find out.
LARGEST_CONFIG = 16 * 1024 * 1024


@value_object
class ModelFiles:
    """The files of a model, found inside its directory; ``config`` is None for a format that has none."""

    model: Path
    tokenizer: Path
    config: Path | None
    format: str = SAFETENSORS


@value_object
class Outline:
    """What the small part of the files says: sizes, and the digest of config.json where there is one."""

    format: str
    architecture: Architecture
    config: FileDigest | None

    def package_digest(self, model_sha256: str) -> str:
        """The identity of all but the tokenizer."""
        if self.config is None:
            return model_sha256
        return sha256_hex(canonical_json([["config", self.config.sha256], ["model", model_sha256]]))


def resolve_files(request: LoadRequest, formats: Collection[str] = (SAFETENSORS,)) -> ModelFiles:
    """Find the files a backend of these ``formats`` needs.

    Raises ``ArtifactInvalid`` for a missing one, ``InvalidRequest`` for a path that misleads.
    """
    root = Path(request.directory)
    if not root.is_absolute():
        raise InvalidRequest(
            f"path {request.directory!r} is relative and the host has a working directory of its own; "
            "give an absolute path",
            details={"path": request.directory},
        )
    if MLMODELC not in formats:
        _refuse_archive(request)
    if GGUF in formats:
        _refuse_config(request)
        return ModelFiles(_found(root, _gguf_name(root, request)), _found(root, request.tokenizer[0]), None, GGUF)
    if MLMODELC in formats:
        named = request.config != (DEFAULT_CONFIG, None) or (root / DEFAULT_CONFIG).exists()
        config = _found(root, request.config[0]) if named else None
        return ModelFiles(_found(root, request.model[0]), _found(root, request.tokenizer[0]), config, MLMODELC)
    _refuse_gguf(root, request)
    model, tokenizer, config = (_found(root, name) for name, _ in (request.model, request.tokenizer, request.config))
    return ModelFiles(model, tokenizer, config)


def with_index(request: LoadRequest, formats: Collection[str] = (SAFETENSORS,)) -> LoadRequest:
    """The request, its weights named by their index where the directory holds that and no ``model.safetensors``.

    Only for the name nobody chose: a file asked for by digest, or by another name, is that file or none.
    """
    if request.model != (DEFAULT_MODEL, None) or SAFETENSORS not in formats:
        return request
    try:
        names = {path.name for path in Path(request.directory).iterdir()}
    except (OSError, ValueError):
        return request  # resolve_files says what is wrong with the directory
    found = DEFAULT_MODEL not in names and INDEX_OF_WEIGHTS in names
    return replace(request, model=(INDEX_OF_WEIGHTS, None)) if found else request


def read_outline(request: LoadRequest, files: ModelFiles) -> Outline:
    """The sizes of the model in ``files``, without reading its weights.

    Raises:
        ArtifactInvalid: a file is not whole, or not the expected one.
        InvalidRequest: config.json describes no model that is served here.

    """
    if files.format == GGUF:
        return Outline(GGUF, _read_gguf(files.model, request.model[1])[0], None)
    config = None if files.config is None else read_verified(files.config, *request.config, limit=LARGEST_CONFIG)
    architecture = None if config is None else read_architecture(_parse_config(config[0], request.config[0]))
    if files.format == MLMODELC:
        architecture = bounded(architecture, longest_package(request))
    assert architecture is not None
    return Outline(files.format, architecture, None if config is None else config[1])


def digest_weights(request: LoadRequest, files: ModelFiles, outline: Outline) -> FileDigest:
    """The digest of the weights, after their header was read with distrust; raises ``ArtifactInvalid``."""
    name, expected = request.model
    if outline.format == GGUF:
        # One descriptor for header and digest: the sizes must be those of the bytes that were hashed.
        architecture, digest = _read_gguf(files.model, expected, hashed=True)
        assert digest is not None
        if architecture != outline.architecture:
            raise artifact_invalid(name, f"file {str(files.model)!r} changed while it was read; load it again")
        _require(files.model, files.model.name, expected, digest)
        return digest
    digest = _digest_verified(files.model, name, expected)
    if not is_index(request) and outline.format == SAFETENSORS:
        _check_header(files.model, name, digest)
    return digest


def is_index(request: LoadRequest) -> bool:
    """True when the model file is the index of weights in several files."""
    return request.model[0].endswith(INDEX_SUFFIX)


def read_verified(path: Path, name: str, expected: str | None, *, limit: int) -> tuple[bytes, FileDigest]:
    """The bytes of a file of at most ``limit`` bytes and their digest: what is parsed is what was hashed."""
    try:
        data = read_file(path, limit=limit)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message, expected_sha256=expected) from fault
    actual = FileDigest(sha256_hex(data), len(data))
    _require(path, name, expected, actual)
    return data, actual


def _found(root: Path, name: str) -> Path:
    try:
        return resolve_inside(root, name)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message) from fault


def _gguf_name(root: Path, request: LoadRequest) -> str:
    """The file asked for, or the only GGUF file there is."""
    if request.model[0] != DEFAULT_MODEL:
        return request.model[0]
    try:
        names = sorted(entry.name for entry in root.iterdir() if entry.name.endswith(".gguf"))
    except OSError:
        names = []
    if len(names) != 1:
        where = "is a file and no directory" if root.is_file() else f"holds {len(names) or 'no'} GGUF files"
        remedy = "give the directory as path and name the file in files.model"
        if not names and root.is_dir():
            remedy = "put the model's file, which ends in .gguf, there"
        raise InvalidRequest(
            f"{request.directory!r} {where} and one is loaded; {remedy}",
            details={"path": request.directory, "files": names[:20]},
        )
    return names[0]


def _refuse_gguf(root: Path, request: LoadRequest) -> None:
    """Say so where a GGUF file is given to an engine that reads none: what is missing beside it would mislead."""
    wanted = request.model[0]
    try:
        names = {entry.name for entry in root.iterdir()} if wanted == DEFAULT_MODEL else {wanted}
    except (OSError, ValueError):
        return  # the search for the files says what is wrong with the directory
    found = min((name for name in names if name.endswith(".gguf")), default=None)
    if found is not None and not names & {DEFAULT_MODEL, INDEX_OF_WEIGHTS}:
        raise InvalidRequest(
            f"{found!r} is a GGUF file and this engine reads none; choose one that does, such as 'llama'",
            details={"parameter": "engine", "file": found},
        )


def _refuse_archive(request: LoadRequest) -> None:
    """Say so where a package of a set is given to an engine that computes from weights."""
    wanted = request.model[0]
    if wanted.endswith(".zip"):
        raise InvalidRequest(
            f"{wanted!r} is a zip archive, as packages of a set for the Neural Engine are, and engine "
            f"{request.engine!r} reads none; choose 'ane-coreml', or name the file of weights",
            details={"parameter": "engine", "file": wanted},
        )


def _refuse_config(request: LoadRequest) -> None:
    if request.config != (DEFAULT_CONFIG, None):
        raise InvalidRequest(
            f"files.config names {request.config[0]!r} and a GGUF file carries its own configuration; leave it out",
            details={"parameter": "files.config"},
        )


def _read_gguf(path: Path, expected: str | None, *, hashed: bool = False) -> tuple[Architecture, FileDigest | None]:
    name = path.name
    try:
        with open_regular(path) as descriptor:
            size = os.fstat(descriptor).st_size
            architecture = _architecture(read_gguf_model(descriptor, size))
            return architecture, FileDigest(sha256_file(descriptor), size) if hashed else None
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message, expected_sha256=expected) from fault
    except GgufFault as fault:
        text = f"{name} is no whole GGUF file: {fault}"
        raise artifact_invalid(name, text, expected_sha256=expected, actual=digest_file(path)) from fault


def _architecture(model: GgufModel) -> Architecture:
    return Architecture(
        family=model.architecture,
        model_type=model.architecture,
        hidden_size=model.embedding_length,
        layers=model.block_count,
        vocab_size=model.vocab_size,
        max_positions=model.context_length,
    )


def _digest_verified(path: Path, name: str, expected: str | None) -> FileDigest:
    try:
        actual = digest_file(path)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message, expected_sha256=expected) from fault
    _require(path, name, expected, actual)
    return actual


def _require(path: Path, name: str, expected: str | None, actual: FileDigest) -> None:
    if expected is not None and actual.sha256 != expected:
        raise artifact_invalid(
            name,
            f"file {str(path)!r} has sha256 {actual.sha256}, not the expected {expected}; restore it and load again",
            expected_sha256=expected,
            actual=actual,
        )


def _parse_config(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{name} is not JSON ({error}); use the model's own config.json", details={"file": name}
        ) from error
    if not isinstance(config, dict):
        raise InvalidRequest(
            f"{name} holds a {type(config).__name__}, not an object; use the model's own config.json",
            details={"file": name},
        )
    return config


def _check_header(path: Path, name: str, digest: FileDigest) -> None:
    try:
        with open_regular(path) as descriptor:
            read_safetensors_header(descriptor, digest.size)
    except SafetensorsFault as fault:
        raise artifact_invalid(
            name, f"{name} is no whole safetensors file: {fault}; restore it and load again", actual=digest
        ) from fault
