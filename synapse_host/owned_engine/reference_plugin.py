"""The built-in backend ``reference``: the definition of every operation, run as it is written.

Slow by design. It is what other backends are certified against, and what the host's own tests serve from.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, DType, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from synapse_host.hookspecs import CheckNumbers, EmbedBatch, Generation, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.decoder import OwnedDecoder
    from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
    from synapse_host.owned_engine.reference_backend import ReferenceBackend
    from synapse_host.owned_engine.weights import CheckpointWeights

ENGINE = "reference"
DTYPES: tuple[DType, ...] = ("f32",)
#: Smallest mean cosine another engine's vectors may have to this one's (probe gate, design section 9).
TOLERANCES = {"cosine_f32": "1"}


@hookimpl
def synapse_describe() -> BackendDescription:
    """The numpy reference, float32 only."""
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_host.owned_engine.shape_policy import BUCKET_POLICY

    families = tuple(FAMILIES)
    kernels = [*revision.shared_sources(), *revision.reference_sources()]
    return BackendDescription(
        backend="reference",
        engine=ENGINE,
        engine_version=version("synapse-host"),
        build_flags={"bucket_policy": BUCKET_POLICY},
        tasks=("embed", "rerank", "generate"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=DTYPES,
        device_class="cpu",
        platforms=("linux", "darwin"),
        extra="",
        owned=True,
        abort_capable=False,
        kernel_revision=revision.kernel_revision(kernels),
        manifest_digest=revision.manifest_digest(
            engine=ENGINE, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
        recommended_batch=BatchPolicy(rows=8, token_budget=1024),
        batch_invariant=True,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """It runs wherever numpy does."""
    return CapabilityEvidence(status="ok", required={}, observed={"numpy": version("numpy")})


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> OwnedEngine | OwnedDecoder:
    """Map the checkpoint and compute one short row, so that a wrong tensor shows now."""
    from synapse_host.owned_engine.loading import load_decoder, load_engine, loads_decoder

    if loads_decoder(spec):
        return load_decoder(spec, DTYPES, _backend, progress)
    return load_engine(spec, DTYPES, _backend, progress)


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: OwnedEngine, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.rerank(sequences, progress)


@hookimpl
def synapse_generate(
    model: OwnedDecoder, prompt: TokenIds, options: Mapping[str, Any], progress: Progress
) -> Generation:
    """The ids after ``prompt``, greedily, over a cache of keys and values."""
    return model.generate(prompt, options, progress)


@hookimpl
def synapse_self_check(model: OwnedEngine | OwnedDecoder, progress: Progress) -> Sequence[CheckNumbers]:
    """Every operation and a tiny model of every family: what other backends' numbers are held against."""
    from synapse_host.ops.op_cases import ReferenceUnderTest
    from synapse_host.owned_engine.self_check import checked_numbers

    return checked_numbers(ReferenceUnderTest(), _engine, model.settings, progress)


@hookimpl
def synapse_unload(model: OwnedEngine | OwnedDecoder) -> bool:
    """Drop the model."""
    model.unload()
    return True


def _engine(weights: CheckpointWeights, settings: ModelSettings) -> OwnedEngine:
    from synapse_host.owned_engine.engine import OwnedEngine

    return OwnedEngine(_backend(weights, settings), settings)


def _backend(weights: CheckpointWeights, settings: ModelSettings) -> ReferenceBackend:
    from synapse_host.owned_engine.reference_backend import ReferenceBackend

    return ReferenceBackend(weights, max_tokens=settings.max_tokens)
