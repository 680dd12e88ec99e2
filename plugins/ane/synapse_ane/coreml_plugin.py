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
#: The modules of this plugin that decide none of this engine's bits: what builds programs, and what looks on.
_ASIDE = (
    *("attention_program", "census", "closed_program", "evidence", "graph_backend", "loading", "normalising"),
    *("package_maker", "package_store", "placement_rules", "plugin", "program", "program_inputs", "program_ops"),
    *("scratch_folder", "shape_ladder", "shape_table"),
)


@hookimpl
def synapse_describe(settings: BackendSettings) -> BackendDescription:
    """Identity and abilities; imports no coremltools."""
    from pathlib import Path

    import synapse_ane
    from synapse_ane.description import describe
    from synapse_ane.device import chosen_device
    from synapse_host.model_files import compiled_package
    from synapse_host.owned_engine.family_table import FAMILIES
    from synapse_host.owned_engine.kernel_revision import package_sources

    families = (*FAMILIES, compiled_package.NAMELESS_FAMILY)
    kernels = [*package_sources(synapse_ane, _ASIDE), Path(compiled_package.__file__)]
    formats = (compiled_package.MODEL_FORMAT,)
    return describe("ane-coreml", ENGINE, formats, families, kernels, chosen_device(settings), {})


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
def synapse_placement(model: PackageModel) -> float | None:
    """The least share of operations on the Neural Engine of any package; None where Core ML does not tell it."""
    return model.placement_share


@hookimpl
def synapse_unload(model: PackageModel) -> bool:
    """Drop the packages."""
    model.unload()
    return True
