"""A backend that counts as one of the Neural Engine and computes by the reference: what pauses do, on any machine.

A test copies this module into a distribution of its own (``fake_distributions.install_backend``); nothing ships it.
Engine names of the real backends belong to them, so the host of the test is told of this one by ``SITE`` beside it.
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
ENGINE = "neural-stub-engine"
#: A ``sitecustomize.py`` for the host's process: pauses concern this engine too.
SITE = f"""
from synapse_host.lanes import neural_engine_models

neural_engine_models.NEURAL_ENGINES |= {{{ENGINE!r}}}
"""


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
