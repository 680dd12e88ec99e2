"""The Neural Engine backend: the host's model families as Core ML programs. Entry point ``ane``.

Engine ``ane-direct-worker``: programs are built from the checkpoint's own weights, one for each padded length, and
compiled the first time a length is used. Importing this module costs nothing; each hook imports what it needs.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synapse_ane.loading import AneModel
    from synapse_host.hookspecs import EmbedBatch, Progress, TokenIds, Vectors

ENGINE = "ane-direct-worker"
#: Smallest cosine to the reference a vector may have; held by the plugin's tests on the interpreted programs.
TOLERANCES = {"cosine_f16": "0.9999"}


@hookimpl
def synapse_describe() -> BackendDescription:
    """Identity and abilities; imports no coremltools."""
    from synapse_ane import evidence
    from synapse_host.owned_engine import kernel_revision as revision
    from synapse_host.owned_engine.family_table import FAMILIES, MODEL_FORMAT

    families = tuple(FAMILIES)
    kernels = kernel_sources()
    return BackendDescription(
        backend="ane",
        engine=ENGINE,
        engine_version=version("synapse-host-ane"),
        build_flags={"shapes": "128-8192", "coremltools": evidence.coremltools_version() or "none"},
        tasks=("embed", "rerank"),
        model_formats=(MODEL_FORMAT,),
        families=families,
        dtypes=("f16",),
        device_class="ane",
        platforms=evidence.PLATFORMS,
        extra="ane",
        owned=True,
        abort_capable=True,
        kernel_revision=revision.kernel_revision(kernels),
        manifest_digest=revision.manifest_digest(
            engine=ENGINE, families=families, kernels=kernels, tolerances=TOLERANCES
        ),
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """Hold system and runtime against the floor."""
    from synapse_ane import evidence

    return evidence.judge(evidence.read_machine())


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> AneModel:
    """Open the checkpoint and compile the program of its shortest shape."""
    from synapse_ane.core_ml_runtime import CoreMLTools
    from synapse_ane.loading import load
    from synapse_host.owned_engine.kernel_revision import kernel_revision

    return load(spec, progress, CoreMLTools(), kernel_revision(kernel_sources()))


@hookimpl
def synapse_embed(model: AneModel, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.engine.embed(batch, progress)


@hookimpl
def synapse_rerank(model: AneModel, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.engine.rerank(sequences, progress)


@hookimpl
def synapse_unload(model: AneModel) -> bool:
    """Drop programs and weights."""
    model.unload()
    return True


def kernel_sources() -> list[Path]:
    """Every module that decides bits: the shared ones and this plugin's own."""
    from pathlib import Path

    from synapse_host.owned_engine.kernel_revision import shared_sources

    here = Path(__file__).parent
    own = ("attention_program", "normalising", "program", "program_inputs", "program_ops", "shape_ladder")
    return [*shared_sources(), *(here / f"{name}.py" for name in own)]
