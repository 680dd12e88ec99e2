"""Reads a model's files and derives what the host must know: digests, limits and the numeric identity.

Runs in a thread: it hashes whole files. Every refusal names the file, the number and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from synapse_host.errors import InvalidRequest
from synapse_host.hookspecs import BackendDescription, BatchPolicy, DType, Pooling, Task
from synapse_host.identity.numeric_profile import (
    PROFILE_POOLING,
    CertifiedShape,
    EngineIdentity,
    NumericProfile,
    fingerprint,
    numeric_profile_id,
    numeric_profile_json,
)
from synapse_host.model_files.architectures import Architecture
from synapse_host.model_files.compiled_package import MODEL_FORMAT as MLMODELC
from synapse_host.model_files.source_files import FileDigest
from synapse_host.models.load_request import LoadRequest
from synapse_host.models.model_package import (
    LARGEST_CONFIG,
    ModelFiles,
    digest_weights,
    is_index,
    read_outline,
    read_verified,
)
from synapse_host.models.package_set import read_extra, set_digest
from synapse_host.models.profiles import refuse_other_engine
from synapse_host.models.registered_model import DEFAULT_POLICY, RegisteredModel, WeightShard
from synapse_host.models.weight_shards import read_shards, weights_digest
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.tokenization.pair_template import template_of
from synapse_host.tokenization.pairs import LaneTokenizer, PairTokenizer

#: Token limit of a free-form model that names none (original facts 2.3).
DEFAULT_MAX_TOKENS = 512
#: The same where prompt and reply share it (the largest context bucket of original facts, section 5).
DEFAULT_GENERATE_TOKENS = 2048
#: Bytes a tokenizer.json (up to tens of megabytes) may have; past them it is not what its name says.
LARGEST_TOKENIZER = 256 * 1024 * 1024
#: What turns a text into the tokens of a task; part of the identity (original facts, section 3).
_TEMPLATES = {"generate": "synapse-microllm-greedy-v1"}
_NOT_IN_ID = re.compile(r"[^a-z0-9._-]+")


def prepare_model(
    request: LoadRequest, files: ModelFiles, description: BackendDescription, *, created_ms: int
) -> RegisteredModel:
    """Everything the host stores about the model, its fingerprint included."""
    if request.profile is not None:
        refuse_other_engine(request.profile, description.engine)
    dtype = _dtype(request.dtype, description)
    outline = read_outline(request, files)
    architecture = outline.architecture
    _check_family(architecture, description, request.family)
    max_tokens = _max_tokens(request, files, architecture)
    tokenizer_bytes, tokenizer = read_verified(files.tokenizer, *request.tokenizer, limit=LARGEST_TOKENIZER)
    parsed = _tokenizer(request, architecture, tokenizer_bytes, max_tokens)
    model = digest_weights(request, files, outline)
    shards, digest = _weights(request, files, model)
    pooling, normalize = _way_out(request)
    engine = EngineIdentity(
        description.engine, description.engine_version, {**description.build_flags, "precision": dtype}
    )
    profile = NumericProfile(
        model_digest=outline.package_digest(digest),
        quant=request.quant,
        engine=engine,
        sanitized_tokenizer_digest=parsed.sanitized_digest,
        pooling=PROFILE_POOLING[pooling],
        normalization="l2" if normalize else "none",
        dtype=dtype,
        certified_shape=CertifiedShape(max_context_tokens=max_tokens),
        prompt_template=parsed.template.to_json()
        if isinstance(parsed, PairTokenizer)
        else _TEMPLATES.get(request.task),
        prefix_template=request.prompts.to_json(),
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
        format=outline.format,
        model_path=str(files.model),
        model_sha256=model.sha256,
        model_size=model.size,
        tokenizer_path=str(files.tokenizer),
        tokenizer_sha256=tokenizer.sha256,
        config_path=str(files.config or files.model),
        config_sha256=(outline.config or model).sha256,
        pooling=pooling,
        normalize=normalize,
        max_tokens=max_tokens,
        vocab_size=architecture.vocab_size,
        dtype=dtype,
        quant=request.quant,
        kernel_revision=description.kernel_revision,
        manifest_digest=description.manifest_digest,
        numeric_profile_json=numeric_profile_json(profile),
        numeric_profile_id=numeric_profile_id(profile),
        fingerprint=fingerprint(profile),
        batch=_batch(files, description, max_tokens),
        created_ms=created_ms,
        shards=shards,
        profile=request.profile,
    )


def read_tokenizer(model: RegisteredModel) -> LaneTokenizer:
    """The tokenizer of a registered model, and a look at its config, which the worker reads too.

    Raises:
        ArtifactInvalid: one of the two files is not the one registered.

    """
    tokenizer = Path(model.tokenizer_path)
    if model.has_config:
        config = Path(model.config_path)
        read_verified(config, config.name, model.config_sha256, limit=LARGEST_CONFIG)
    data, _ = read_verified(tokenizer, tokenizer.name, model.tokenizer_sha256, limit=LARGEST_TOKENIZER)
    limits = {"max_tokens": model.max_tokens, "vocab_size": model.vocab_size}
    if model.task == "rerank":
        return PairTokenizer.from_json(data, template=model.pair_template, **limits)
    return ModelTokenizer.from_json(data, prompts=model.prompts, rowless_added=model.task == "generate", **limits)


def _weights(request: LoadRequest, files: ModelFiles, model: FileDigest) -> tuple[tuple[WeightShard, ...], str]:
    """The files beside the first, and one digest for all of them."""
    if files.format == MLMODELC:
        extra = read_extra(request)
        return extra, set_digest(model.sha256, extra)
    shards = read_shards(request.directory, files.model, request.model[0], model) if is_index(request) else ()
    return shards, weights_digest(model.sha256, shards)


def _batch(files: ModelFiles, description: BackendDescription, max_tokens: int) -> BatchPolicy:
    if files.format == MLMODELC:
        # Source: the advice for Core ML lanes (original facts 2.4).
        return BatchPolicy(rows=8, token_budget=8 * max_tokens)
    return description.recommended_batch or DEFAULT_POLICY


def _tokenizer(request: LoadRequest, architecture: Architecture, data: bytes, max_tokens: int) -> LaneTokenizer:
    if request.prompts and request.task != "embed":
        raise InvalidRequest(
            f"prompts belong to models that embed and task is {request.task!r}; leave them out",
            details={"parameter": "prompts"},
        )
    limits = {"max_tokens": max_tokens, "vocab_size": architecture.vocab_size}
    if request.task == "rerank":
        return PairTokenizer.from_json(data, template=template_of(architecture.family), **limits)
    return ModelTokenizer.from_json(data, prompts=request.prompts, rowless_added=request.task == "generate", **limits)


def _check_family(architecture: Architecture, description: BackendDescription, asked: str | None) -> None:
    if asked not in (None, architecture.family):
        raise InvalidRequest(
            f"family is {asked!r} and the model's config says {architecture.family!r}; correct it, or leave it out",
            details={"family": asked, "found": architecture.family},
        )
    if architecture.family not in description.families:
        raise InvalidRequest(
            f"engine {description.engine!r} does not run family {architecture.family!r}; "
            f"it runs {', '.join(description.families)}",
            details={"family": architecture.family, "engine": description.engine},
        )


def _way_out(request: LoadRequest) -> tuple[Pooling, bool]:
    """How a model's rows leave it; a text that is continued and a pair have neither choice, so it moves no identity."""
    fixed: Mapping[Task, Pooling] = {"generate": "last", "rerank": "cls"}
    pooling = fixed.get(request.task)
    return (request.pooling, request.normalize) if pooling is None else (pooling, False)


def _max_tokens(request: LoadRequest, files: ModelFiles, architecture: Architecture) -> int:
    asked = request.max_tokens
    if asked is None and files.format == MLMODELC:
        return architecture.max_positions
    if asked is None:
        default = DEFAULT_GENERATE_TOKENS if request.task == "generate" else DEFAULT_MAX_TOKENS
        return min(default, architecture.max_positions)
    if asked > architecture.max_positions:
        raise InvalidRequest(
            f"max_tokens {asked} passes the model's {architecture.max_positions} positions; lower max_tokens",
            details={"max_tokens": asked, "max_positions": architecture.max_positions},
        )
    return asked


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


def _default_id(directory: str, model_sha256: str) -> str:
    name = _NOT_IN_ID.sub("-", Path(directory).resolve().name.lower()).strip("-.") or "model"
    return f"{name[:100]}-{model_sha256[:8]}"
