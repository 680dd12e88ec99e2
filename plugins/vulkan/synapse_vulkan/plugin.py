"""The Vulkan backend: the host's model families as compute shaders. Entry point ``vulkan``, engine ``owned-vulkan``.

Importing this module costs nothing; each hook imports what it needs.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, BatchPolicy, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synapse_host.hookspecs import BackendSettings, CheckNumbers, DType, EmbedBatch, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
    from synapse_host.owned_engine.weights import CheckpointWeights

ENGINE = "owned-vulkan"
#: The modules of this plugin that decide no bits. Among the others is the index, which names every kernel's digest.
_ASIDE = ("device_facts", "drivers", "evidence", "instance", "loss", "pace", "single_ops", "sizing")
#: f16 stores matrices in half the memory; everything is computed in float32 either way.
DTYPES: tuple[DType, ...] = ("f32", "f16")
#: Smallest cosine to the reference a vector may have, by activation type; held by the plugin's tests.
TOLERANCES = {"cosine_f32": "0.999999", "cosine_f16": "0.99999"}
RECOMMENDED_BATCH = BatchPolicy(rows=64, token_budget=2048)


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities. The device and its driver are part of them: they are listed, and none is opened."""
    import synapse_vulkan
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT
    from synapse_vulkan.evidence import PLATFORMS

    families = tuple(FAMILIES)
    kernels = [*revision.shared_sources(), *revision.package_sources(synapse_vulkan, _ASIDE)]
    return BackendDescription(
        backend="vulkan",
        engine=ENGINE,
        engine_version=version("synapse-host-vulkan"),
        build_flags=_build_flags(),
        tasks=("embed", "rerank"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=DTYPES,
        device_class="vulkan",
        platforms=PLATFORMS,
        extra="vulkan",
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
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """Hold the devices against the floor and run every variant of the product on the chosen one."""
    from synapse_vulkan import evidence

    return evidence.probe(software=_software_allowed(settings))


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress, settings: BackendSettings) -> OwnedEngine:
    """Read the checkpoint, put it on the device and compute one short row."""
    from synapse_host.owned_engine.loading import load_engine
    from synapse_vulkan.backend import closed_on_failure
    from synapse_vulkan.loss import device_loss_typed
    from synapse_vulkan.opening import open_runtime, require_permission
    from synapse_vulkan.sizing import require_room

    with device_loss_typed():
        runtime = open_runtime()
        require_permission(runtime, software=_software_allowed(settings))
        with closed_on_failure() as backends:
            return load_engine(spec, DTYPES, backends.make, progress, require_room=partial(require_room, runtime))


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    from synapse_vulkan.loss import device_loss_typed

    with device_loss_typed():
        return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: OwnedEngine, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    from synapse_vulkan.loss import device_loss_typed

    with device_loss_typed():
        return model.rerank(sequences, progress)


@hookimpl
def synapse_self_check(model: OwnedEngine, progress: Progress) -> Sequence[CheckNumbers]:
    """Every operation replayed alone and a tiny model of every family, on the device the model is on."""
    from synapse_host.owned_engine.engine import OwnedEngine
    from synapse_host.owned_engine.self_check import checked_numbers
    from synapse_vulkan.backend import VulkanBackend
    from synapse_vulkan.loss import device_loss_typed
    from synapse_vulkan.opening import open_runtime
    from synapse_vulkan.single_ops import ReplayedSingly

    runtime = open_runtime()
    subject = ReplayedSingly(runtime, model.settings.dtype)

    def engine(weights: CheckpointWeights, tiny: ModelSettings) -> OwnedEngine:
        half = tiny.dtype == "f16"
        return OwnedEngine(VulkanBackend(runtime, weights, max_tokens=tiny.max_tokens, half=half), tiny)

    with device_loss_typed(), closing(subject):
        return checked_numbers(subject, engine, model.settings, progress)


@hookimpl
def synapse_unload(model: OwnedEngine) -> bool:
    """Free what the model has on the device."""
    model.unload()
    return True


def _software_allowed(settings: BackendSettings) -> bool:
    return settings.get("allow_software_device") == "true"


def _build_flags() -> dict[str, str]:
    """What of the build and the device moves bits, apart from the precision, which the host adds per lane."""
    from synapse_host.owned_engine.shape_policy import BUCKET_POLICY
    from synapse_vulkan.device_facts import identity_flags
    from synapse_vulkan.evidence import read_machine

    return {"bucket_policy": BUCKET_POLICY, **identity_flags(read_machine().chosen)}
