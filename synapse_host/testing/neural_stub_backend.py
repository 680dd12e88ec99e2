"""A backend that counts as one of the Neural Engine and computes by the reference: what pauses do, on any machine.

A test copies this module into a distribution of its own (``fake_distributions.install_backend``); nothing ships it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl
from synapse_host.owned_engine import reference_plugin as reference

if TYPE_CHECKING:
    from synapse_host.hookspecs import EmbedBatch, Progress, Vectors
    from synapse_host.owned_engine.engine import OwnedEngine

BACKEND = "neural-stub"
#: The engine that pauses concern and that has no shapes to admit.
ENGINE = "ane-coreml-worker"


@hookimpl
def synapse_describe() -> BackendDescription:
    """The reference under another name, for embedding alone."""
    return dataclasses.replace(
        reference.synapse_describe(), backend=BACKEND, engine=ENGINE, tasks=("embed",), device_class="ane"
    )


@hookimpl
def synapse_probe_capability() -> CapabilityEvidence:
    """As the reference."""
    return reference.synapse_probe_capability()


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> OwnedEngine:
    """As the reference."""
    loaded = reference.synapse_load(spec, progress)
    assert not hasattr(loaded, "generate"), "this backend embeds"
    return loaded


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """As the reference."""
    return reference.synapse_embed(model, batch, progress)


@hookimpl
def synapse_unload(model: OwnedEngine) -> bool:
    """As the reference."""
    return reference.synapse_unload(model)
