"""GGUF models by llama.cpp. Entry point ``llama``, engine ``llama.cpp-worker``.

Importing this module costs nothing; each hook imports what it needs. llama.cpp ends its process where an input breaks
one of its assumptions, so every number is held against the engine's limits before a call (``limits``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, LoadSpec, hookimpl
from synapse_llama_worker.architectures import ENCODING, GENERATING

if TYPE_CHECKING:
    from synapse_host.hookspecs import EmbedBatch, Generation, Progress, TokenIds, Vectors
    from synapse_llama_worker.model import LlamaModel

ENGINE = "llama.cpp-worker"


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; reads the library's version and does not import it."""
    from synapse_llama_worker import evidence

    return BackendDescription(
        backend="llama",
        engine=ENGINE,
        engine_version=version("synapse-host-llama-worker"),
        build_flags={"llama_cpp_python": evidence.library_version() or "none", "kv_cache": "f16"},
        tasks=("embed", "rerank", "generate"),
        model_formats=("gguf",),
        families=(*GENERATING, *ENCODING),
        # Its attention works on half-precision keys and values whatever the weights are.
        dtypes=("f16",),
        device_class="cpu",
        platforms=evidence.PLATFORMS,
        extra="llama",
        owned=False,
        abort_capable=True,
        recommended_batch=BatchPolicy(rows=64, token_budget=2048),
        batch_invariant=False,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """Hold platform and library against the floor; loads the library to see that this processor can run it."""
    from synapse_llama_worker import evidence

    return evidence.probe()


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> LlamaModel:
    """Check the header of the verified file, let llama.cpp map it and compute one token."""
    from synapse_llama_worker.loading import load

    return load(spec, progress)


@hookimpl
def synapse_embed(model: LlamaModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch; pooling is llama.cpp's own."""
    from synapse_llama_worker.embedding import embed

    return embed(model, batch, progress)


@hookimpl
def synapse_rerank(model: LlamaModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Score complete sequences; float32 [rows]."""
    from synapse_llama_worker.reranking import score

    return score(model, sequences, progress)


@hookimpl
def synapse_rerank_pairs(
    model: LlamaModel, query: TokenIds, candidates: Sequence[TokenIds], progress: Progress
) -> Vectors:
    """Score BOS query SEP candidate EOS for each candidate; float32 [rows]."""
    from synapse_llama_worker.reranking import compose, score

    return score(model, compose(model, query, candidates), progress)


@hookimpl
def synapse_generate(model: LlamaModel, prompt: TokenIds, options: Mapping[str, Any], progress: Progress) -> Generation:
    """Decode greedily after ``prompt``; the text is left to the host."""
    from synapse_llama_worker.generation import generate

    return generate(model, prompt, options, progress)


@hookimpl
def synapse_unload(model: LlamaModel) -> bool:
    """Free contexts and weights."""
    model.close()
    return True
