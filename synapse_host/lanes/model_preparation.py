"""Reads a model's files and derives what the host must know: digests, limits and the numeric identity.

Runs in a thread: it hashes whole files. Every refusal names the file, the number and what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from synapse_host.errors import ArtifactInvalid, InvalidRequest
from synapse_host.hookspecs import BackendDescription, DType
from synapse_host.identity.canonical_json import canonical_json
from synapse_host.identity.digests import sha256_hex
from synapse_host.identity.numeric_profile import (
    PROFILE_POOLING,
    CertifiedShape,
    EngineIdentity,
    NumericProfile,
    fingerprint,
    numeric_profile_id,
    numeric_profile_json,
)
from synapse_host.lanes.batching import DEFAULT_POLICY
from synapse_host.lanes.file_errors import artifact_invalid
from synapse_host.lanes.load_request import LoadRequest
from synapse_host.lanes.registered_model import RegisteredModel
from synapse_host.model_files.architectures import Architecture, read_architecture
from synapse_host.model_files.safetensors_header import SafetensorsFault, read_safetensors_header
from synapse_host.model_files.source_files import FileDigest, digest_file, open_regular, read_file, resolve_inside
from synapse_host.tokenization.model_tokenizer import ModelTokenizer

#: Token limit of a free-form model that names none (original facts 2.3).
DEFAULT_MAX_TOKENS = 512
MODEL_FORMAT = "safetensors-package"
#: Bytes a config.json (a few kilobytes) and a tokenizer.json (up to tens of megabytes) may have; past them the file is
#: not what its name says, and the host will not read it into memory to find out.
LARGEST_CONFIG = 16 * 1024 * 1024
LARGEST_TOKENIZER = 256 * 1024 * 1024
_NOT_IN_ID = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The three files of a model, found inside its directory."""

    model: Path
    tokenizer: Path
    config: Path


def resolve_files(request: LoadRequest) -> ModelFiles:
    """Find the files; raises ``ArtifactInvalid`` for a missing one, ``InvalidRequest`` for a path that misleads."""
    root = Path(request.directory)
    if not root.is_absolute():
        raise InvalidRequest(
            f"path {request.directory!r} is relative and the host has a working directory of its own; "
            "give an absolute path",
            details={"path": request.directory},
        )
    return ModelFiles(*(_found(root, name) for name, _ in (request.model, request.tokenizer, request.config)))


def prepare_model(
    request: LoadRequest, files: ModelFiles, description: BackendDescription, *, created_ms: int
) -> RegisteredModel:
    """Everything the host stores about the model, its fingerprint included."""
    dtype = _dtype(request.dtype, description)
    config_bytes, config = _read_verified(files.config, *request.config, limit=LARGEST_CONFIG)
    architecture = read_architecture(_parse_config(config_bytes, request.config[0]))
    _check_family(architecture, description)
    max_tokens = _max_tokens(request.max_tokens, architecture)
    tokenizer_bytes, tokenizer = _read_verified(files.tokenizer, *request.tokenizer, limit=LARGEST_TOKENIZER)
    parsed = ModelTokenizer.from_json(tokenizer_bytes, max_tokens=max_tokens, vocab_size=architecture.vocab_size)
    model = _digest_verified(files.model, *request.model)
    _check_header(files.model, request.model[0], model)
    engine = EngineIdentity(
        description.engine, description.engine_version, {**description.build_flags, "precision": dtype}
    )
    profile = NumericProfile(
        model_digest=_package_digest(model.sha256, config.sha256),
        quant=request.quant,
        engine=engine,
        sanitized_tokenizer_digest=parsed.sanitized_digest,
        pooling=PROFILE_POOLING[request.pooling],
        normalization="l2" if request.normalize else "none",
        dtype=dtype,
        certified_shape=CertifiedShape(max_context_tokens=max_tokens),
        operation=request.task,
        kernel_revision=description.kernel_revision,
    )
    return RegisteredModel(
        model_id=request.model_id or _default_id(request.directory, model.sha256),
        backend=description.backend,
        engine=engine,
        device_class=description.device_class,
        task=request.task,
        family=architecture.family,
        format=MODEL_FORMAT,
        model_path=str(files.model),
        model_sha256=model.sha256,
        model_size=model.size,
        tokenizer_path=str(files.tokenizer),
        tokenizer_sha256=tokenizer.sha256,
        config_path=str(files.config),
        config_sha256=config.sha256,
        pooling=request.pooling,
        normalize=request.normalize,
        max_tokens=max_tokens,
        vocab_size=architecture.vocab_size,
        dtype=dtype,
        quant=request.quant,
        kernel_revision=description.kernel_revision,
        manifest_digest=description.manifest_digest,
        numeric_profile_json=numeric_profile_json(profile),
        numeric_profile_id=numeric_profile_id(profile),
        fingerprint=fingerprint(profile),
        batch=description.recommended_batch or DEFAULT_POLICY,
        created_ms=created_ms,
    )


def read_tokenizer(model: RegisteredModel) -> ModelTokenizer:
    """The tokenizer of a registered model, and a look at its config, which the worker reads too.

    Raises:
        ArtifactInvalid: one of the two files is not the one registered.

    """
    config, tokenizer = Path(model.config_path), Path(model.tokenizer_path)
    _read_verified(config, config.name, model.config_sha256, limit=LARGEST_CONFIG)
    data, _ = _read_verified(tokenizer, tokenizer.name, model.tokenizer_sha256, limit=LARGEST_TOKENIZER)
    return ModelTokenizer.from_json(data, max_tokens=model.max_tokens, vocab_size=model.vocab_size)


def _found(root: Path, name: str) -> Path:
    try:
        return resolve_inside(root, name)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message) from fault


def _read_verified(path: Path, name: str, expected: str | None, *, limit: int) -> tuple[bytes, FileDigest]:
    """The bytes of a file and their digest: what is parsed is what was hashed."""
    try:
        data = read_file(path, limit=limit)
    except ArtifactInvalid as fault:
        raise artifact_invalid(name, fault.message, expected_sha256=expected) from fault
    actual = FileDigest(sha256_hex(data), len(data))
    _require(path, name, expected, actual)
    return data, actual


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


def _check_family(architecture: Architecture, description: BackendDescription) -> None:
    if architecture.family not in description.families:
        raise InvalidRequest(
            f"engine {description.engine!r} does not run family {architecture.family!r}; "
            f"it runs {', '.join(description.families)}",
            details={"family": architecture.family, "engine": description.engine},
        )


def _max_tokens(asked: int | None, architecture: Architecture) -> int:
    if asked is None:
        return min(DEFAULT_MAX_TOKENS, architecture.max_positions)
    if asked > architecture.max_positions:
        raise InvalidRequest(
            f"max_tokens {asked} passes the model's {architecture.max_positions} positions; lower max_tokens",
            details={"max_tokens": asked, "max_positions": architecture.max_positions},
        )
    return asked


def _check_header(path: Path, name: str, digest: FileDigest) -> None:
    try:
        with open_regular(path) as descriptor:
            read_safetensors_header(descriptor, digest.size)
    except SafetensorsFault as fault:
        raise artifact_invalid(
            name, f"{name} is no whole safetensors file: {fault}; restore it and load again", actual=digest
        ) from fault


def _dtype(asked: DType | None, description: BackendDescription) -> DType:
    if asked is None:
        return description.dtypes[0]
    if asked not in description.dtypes:
        raise InvalidRequest(
            f"engine {description.engine!r} cannot compute in {asked!r} on this machine; "
            f"it can in {', '.join(description.dtypes)}",
            details={"dtype": asked, "dtypes": list(description.dtypes)},
        )
    return asked


def _package_digest(model_sha256: str, config_sha256: str) -> str:
    return sha256_hex(canonical_json([["config", config_sha256], ["model", model_sha256]]))


def _default_id(directory: str, model_sha256: str) -> str:
    name = _NOT_IN_ID.sub("-", Path(directory).resolve().name.lower()).strip("-.") or "model"
    return f"{name[:100]}-{model_sha256[:8]}"
