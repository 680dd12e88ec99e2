"""The CPU backend: the host's model families compiled by OpenVINO. Entry point ``cpu``, engine ``owned-cpu``.

Importing this module costs nothing; each hook imports what it needs.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from synapse_host.hookspecs import CheckNumbers, EmbedBatch, Generation, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.decoder import OwnedDecoder
    from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
    from synapse_host.owned_engine.weights import CheckpointWeights
    from synapse_owned_cpu.graph_backend import OpenVinoBackend

ENGINE = "owned-cpu"
#: The modules of this plugin that decide no bits.
_ASIDE = ("evidence", "single_ops", "telemetry")
#: Smallest cosine to the reference a vector may have, by activation type; held by the plugin's tests.
TOLERANCES = {"cosine_f32": "0.999999", "cosine_bf16": "0.9999"}
#: Measured with MiniLM on two cores: larger gains nothing, smaller loses some percent (table in the README).
RECOMMENDED_BATCH = BatchPolicy(rows=64, token_budget=2048)


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; reads the processor's flags and OpenVINO's version, imports neither."""
    import synapse_owned_cpu
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_owned_cpu import evidence

    families = tuple(FAMILIES)
    kernels = [*revision.shared_sources(), *revision.package_sources(synapse_owned_cpu, _ASIDE)]
    return BackendDescription(
        backend="cpu",
        engine=ENGINE,
        engine_version=version("synapse-host-owned-cpu"),
        build_flags=_build_flags(),
        tasks=("embed", "rerank", "generate"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=evidence.dtypes_of(evidence.read_machine().isa),
        device_class="cpu",
        platforms=evidence.PLATFORMS,
        extra="cpu",
        owned=True,
        abort_capable=True,
        kernel_revision=revision.kernel_revision(kernels),
        manifest_digest=revision.manifest_digest(
            engine=ENGINE, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
        recommended_batch=RECOMMENDED_BATCH,
        batch_invariant=True,
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """Hold processor, memory and runtime against the floor, and run a small graph."""
    from synapse_owned_cpu import evidence

    return evidence.probe()


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> OwnedEngine | OwnedDecoder:
    """Map the checkpoint, compile its graph and compute one short row."""
    from synapse_host.owned_engine.loading import load_decoder, load_engine, loads_decoder
    from synapse_owned_cpu import evidence

    dtypes = evidence.dtypes_of(evidence.read_machine().isa)
    if loads_decoder(spec):
        return load_decoder(spec, dtypes, _backend, progress)
    return load_engine(spec, dtypes, _backend, progress)


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
    """Every operation compiled alone and a tiny model of every family, in the model's dtype and on its threads."""
    from synapse_host.owned_engine.self_check import checked_numbers
    from synapse_owned_cpu.single_ops import RecordedSingly

    settings = model.settings
    return checked_numbers(RecordedSingly(settings.dtype, settings.threads), _engine, settings, progress)


@hookimpl
def synapse_unload(model: OwnedEngine | OwnedDecoder) -> bool:
    """Drop graphs and weights."""
    model.unload()
    return True


def _engine(weights: CheckpointWeights, settings: ModelSettings) -> OwnedEngine:
    from synapse_host.owned_engine.engine import OwnedEngine

    return OwnedEngine(_backend(weights, settings), settings)


def _backend(weights: CheckpointWeights, settings: ModelSettings) -> OpenVinoBackend:
    from synapse_owned_cpu.graph_backend import OpenVinoBackend

    return OpenVinoBackend(weights, max_tokens=settings.max_tokens, threads=settings.threads, dtype=settings.dtype)


def _build_flags() -> dict[str, str]:
    """What of the build moves bits, apart from the precision, which the host adds per lane (reading 35)."""
    from synapse_host.owned_engine.shape_policy import BUCKET_POLICY
    from synapse_owned_cpu.evidence import openvino_version

    release = ".".join((openvino_version() or "none").split(".")[:2])
    return {"bucket_policy": BUCKET_POLICY, "openvino": release}
