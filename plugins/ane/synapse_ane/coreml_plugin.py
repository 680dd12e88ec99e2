"""The Neural Engine backend for package sets compiled elsewhere: ``ane-coreml``, engine ``ane-coreml-worker``.

A backend of its own, because a worker says its engine before it is told what to load. Importing this module costs
nothing; each hook imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synapse_ane.package_model import PackageModel
    from synapse_host.hookspecs import BackendSettings, EmbedBatch, Progress, TokenIds, Vectors

ENGINE = "ane-coreml-worker"
#: The modules of this plugin that decide bits; the rest of them are in the packages.
_KERNELS = ("package_model",)


@hookimpl
def synapse_describe(settings: BackendSettings) -> BackendDescription:
    """Identity and abilities; imports no coremltools."""
    from synapse_ane.description import describe, own_sources
    from synapse_ane.device import chosen_device
    from synapse_host.model_files.compiled_package import MODEL_FORMAT, NAMELESS_FAMILY
    from synapse_host.owned_engine.family_table import FAMILIES

    families = (*FAMILIES, NAMELESS_FAMILY)
    kernels = own_sources(*_KERNELS)
    return describe("ane-coreml", ENGINE, (MODEL_FORMAT,), families, kernels, chosen_device(settings), {})


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """The same machine as the other backend's."""
    from synapse_ane import plugin

    return plugin.synapse_probe_capability(settings)


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress, settings: BackendSettings) -> PackageModel:
    """Verify and unpack the set, make every package ready and try each on one row."""
    from synapse_ane.device import chosen_device
    from synapse_ane.package_loading import load_set

    return load_set(spec, progress, chosen_device(settings).runtime())


@hookimpl
def synapse_embed(model: PackageModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: PackageModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.rerank(sequences, progress)


@hookimpl
def synapse_placement(model: PackageModel) -> float:
    """The least share of operations on the Neural Engine of any package."""
    return model.placement_share


@hookimpl
def synapse_unload(model: PackageModel) -> bool:
    """Drop the packages."""
    model.unload()
    return True
