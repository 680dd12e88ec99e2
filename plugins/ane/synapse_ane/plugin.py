"""The Neural Engine backend that builds its programs: the host's model families for Core ML. Entry point ``ane``.

Engine ``ane-direct-worker``: programs are built from the checkpoint's own weights, one for each padded length, and
compiled when the host admits a length or a row first needs it. Importing this module costs nothing; each hook imports
what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from synapse_ane.loading import AneModel
    from synapse_host.hookspecs import BackendSettings, EmbedBatch, Progress, TokenIds, Vectors

ENGINE = "ane-direct-worker"
#: The modules of this plugin that decide none of this engine's bits: package sets, and what looks on.
_ASIDE = (
    *("census", "closed_program", "coreml_plugin", "evidence", "package_archive", "package_loading", "package_maker"),
    *("package_model", "package_set", "placement_rules", "scratch_folder"),
)


@hookimpl
def synapse_describe(settings: BackendSettings) -> BackendDescription:
    """Identity and abilities; imports no coremltools."""
    from synapse_ane.description import describe
    from synapse_ane.device import chosen_device
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT

    flags = {"shapes": "128-8192"}
    return describe("ane", ENGINE, (MODEL_FORMAT,), tuple(FAMILIES), kernel_sources(), chosen_device(settings), flags)


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """Hold system and runtime against the floor."""
    from synapse_ane import evidence
    from synapse_ane.device import chosen_device

    return evidence.judge(evidence.read_machine(), interpreter=chosen_device(settings).kind == "interpreter")


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress, settings: BackendSettings) -> AneModel:
    """Open the checkpoint and compile the program of its shortest shape, where the host does not admit shapes."""
    from synapse_ane.description import revision_of
    from synapse_ane.device import chosen_device
    from synapse_ane.loading import load

    return load(spec, progress, chosen_device(settings).runtime(), revision_of(tuple(kernel_sources())))


@hookimpl
def synapse_embed(model: AneModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.engine.embed(batch, progress)


@hookimpl
def synapse_rerank(model: AneModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.engine.rerank(sequences, progress)


@hookimpl
def synapse_admit_shape(model: AneModel, shape: int, progress: Progress) -> Mapping[str, Any]:
    """Compile the programs of a padded length and run them once."""
    return model.admit(shape, progress)


@hookimpl
def synapse_evict_shape(model: AneModel, shape: int, progress: Progress) -> bool:
    """Close the programs of a padded length."""
    return model.evict(shape)


@hookimpl
def synapse_placement(model: AneModel) -> float | None:
    """The least share of operations on the Neural Engine of any length; None before one was compiled, or untold."""
    return model.programs.placement_share()


@hookimpl
def synapse_unload(model: AneModel) -> bool:
    """Drop programs and weights."""
    model.unload()
    return True


def kernel_sources() -> list[Path]:
    """Every module that decides bits: the shared ones and this plugin's own."""
    import synapse_ane
    from synapse_host.owned_engine.kernel_revision import package_sources, shared_sources

    return [*shared_sources(), *package_sources(synapse_ane, _ASIDE)]
