"""The plugin's own path with the interpreter in the place of Core ML: the hooks of the tests, on any platform.

It is no backend: nothing installs it as one, and the conformance of numbers it shows is of the programs, not of a
Neural Engine.
"""

from __future__ import annotations

from synapse_ane.interpreted_runtime import InterpretedRuntime
from synapse_ane.loading import AneModel, load
from synapse_ane.plugin import synapse_describe, synapse_embed, synapse_rerank, synapse_unload
from synapse_host.hookspecs import LoadSpec, Progress, hookimpl

__all__ = ["synapse_describe", "synapse_embed", "synapse_load", "synapse_rerank", "synapse_unload"]


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress) -> AneModel:
    """As the plugin loads, on interpreted programs."""
    return load(spec, progress, InterpretedRuntime(), "interpreted")
