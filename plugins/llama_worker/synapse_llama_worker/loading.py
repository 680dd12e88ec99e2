"""LOAD: the verified file's header is held against what was asked, then llama.cpp maps the file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from synapse_host.hookspecs import LoadSpec, PluginError, Progress
from synapse_host.model_files.gguf_cursor import GgufFault
from synapse_host.model_files.gguf_header import read_gguf_header
from synapse_host.model_files.gguf_model import GgufModel, gguf_model
from synapse_llama_worker.architectures import ENCODING
from synapse_llama_worker.contradictions import check_numbers, check_types
from synapse_llama_worker.library import forget_errors, last_errors, open_library
from synapse_llama_worker.model import Facts, LlamaModel

#: A tensor a classifier cannot be without; files name its last layer by one of these.
_CLASSIFIER_TENSORS = frozenset({"cls.weight", "cls.output.weight"})
#: llama.h, enum llama_load_mode. Mapped, as the worker protocol says; read into memory a model is a sixth slower.
_LOAD_MODE_MMAP = 1


def load(spec: LoadSpec, progress: Progress) -> LlamaModel:
    """The model of ``spec``, after it computed one token.

    Raises:
        PluginError: artifact_invalid, model_unsupported, config_invalid, head_tensor_missing, oom or load_failed.

    """
    file = _read_header(spec)
    operation = spec.runtime_config.get("operation", "embed")
    _check_architecture(spec, file, operation)
    _check_length(spec, file)
    threads = _threads(spec)
    library = open_library()
    handle = _open(library, spec)
    model = LlamaModel(library, handle, _facts(library, handle, spec, operation, threads))
    try:
        _check_engine_agrees(model, file)
        _warm_up(model, spec)
    except BaseException:
        model.close()
        raise
    progress(1, "setup")
    return model


def _read_header(spec: LoadSpec) -> GgufModel:
    try:
        header = read_gguf_header(spec.artifact_fd, os.fstat(spec.artifact_fd).st_size)
        file = gguf_model(header)
        check_numbers(header.values, file)
        check_types(header.tensors)
        return file
    except GgufFault as fault:
        raise PluginError("artifact_invalid", f"{spec.artifact_path}: {fault}") from fault


def _check_architecture(spec: LoadSpec, file: GgufModel, operation: str) -> None:
    if file.architecture != spec.family:
        raise PluginError(
            "model_unsupported",
            f"{spec.artifact_path} holds architecture {file.architecture!r} and LOAD says family {spec.family!r}",
        )
    encoder = file.architecture in ENCODING
    if operation == "generate" and encoder:
        raise PluginError("model_unsupported", f"architecture {file.architecture!r} only encodes; it cannot generate")
    if operation != "rerank":
        return
    if not encoder:
        # A causal reranker answers inside a chat template; without the very template its scores mean nothing.
        raise PluginError(
            "model_unsupported",
            f"rerankers of architecture {file.architecture!r} are not served from GGUF files: their prompt template "
            "is not reproduced here; use a backend with numbers of its own",
        )
    if not _CLASSIFIER_TENSORS & file.tensor_names:
        wanted = " or ".join(sorted(_CLASSIFIER_TENSORS))
        raise PluginError("head_tensor_missing", f"{spec.artifact_path} has no {wanted}, so it is no reranker")


def _check_length(spec: LoadSpec, file: GgufModel) -> None:
    if spec.max_tokens > file.context_length:
        raise PluginError(
            "config_invalid",
            f"max_tokens {spec.max_tokens} passes the {file.context_length} positions of the model; lower max_tokens",
        )


def _threads(spec: LoadSpec) -> int:
    text = spec.runtime_config.get("threads", "0")
    if not (text.isascii() and text.isdigit()):
        raise PluginError("config_invalid", f"threads {text!r} is no decimal number; use 0 for all cores")
    affinity = getattr(os, "sched_getaffinity", None)
    return int(text) or (len(affinity(0)) if affinity else os.cpu_count() or 1)


def _open(library: Any, spec: LoadSpec) -> Any:
    params = library.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mode = _LOAD_MODE_MMAP
    forget_errors()
    # The descriptor whose bytes were hashed, whatever the path names by now.
    handle = library.llama_model_load_from_file(f"/dev/fd/{spec.artifact_fd}".encode(), params)
    if handle:
        return handle
    reason = last_errors() or "it gave no reason"
    code = "oom" if "allocate" in reason else "artifact_invalid"
    raise PluginError(code, f"llama.cpp cannot load {Path(spec.artifact_path).name!r}: {reason}")


def _facts(library: Any, handle: Any, spec: LoadSpec, operation: str, threads: int) -> Facts:
    vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(handle))
    return Facts(
        operation=operation,
        positions=spec.max_tokens,
        width=library.llama_model_n_embd_out(handle),
        vocabulary=vocabulary,
        threads=threads,
        classifier_outputs=library.llama_model_n_cls_out(handle),
    )


def _check_engine_agrees(model: LlamaModel, file: GgufModel) -> None:
    if model.facts.vocabulary != file.vocab_size:
        raise PluginError(
            "load_failed",
            f"llama.cpp counts {model.facts.vocabulary} tokens where the file's header has {file.vocab_size}",
        )


def _warm_up(model: LlamaModel, spec: LoadSpec) -> None:
    """One token through the context the lane will use: what is missing shows here, not in service."""
    kind = {"generate": "none", "rerank": "rank"}.get(model.facts.operation, spec.runtime_config.get("pooling", "mean"))
    if kind not in ("none", "rank", "mean", "cls", "last"):
        raise PluginError("config_invalid", f"pooling {kind!r} is not one of mean, cls, last")
    context = model.context(kind)
    context.compute([np.zeros(1, np.int32)])
    if kind == "none":
        context.logits()
    else:
        context.pooled(0, model.facts.classifier_outputs if kind == "rank" else model.facts.width)
    context.forget()
