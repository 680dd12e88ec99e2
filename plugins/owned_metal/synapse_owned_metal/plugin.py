"""The Metal backend: the host's model families on MLX. Entry point ``metal``, engine ``owned-metal``.

Importing this module costs nothing; each hook imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synapse_host.hookspecs import BackendSettings, CheckNumbers, EmbedBatch, Progress, TokenIds, Vectors
    from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
    from synapse_host.owned_engine.weights import CheckpointWeights

ENGINE = "owned-metal"


@hookimpl
def synapse_describe(settings: BackendSettings) -> BackendDescription:
    """Identity and abilities on the device the settings choose."""
    from synapse_host.owned_engine.family_table import FAMILIES
    from synapse_owned_metal.description import describe
    from synapse_owned_metal.device import chosen_device

    return describe("metal", ENGINE, ("embed", "rerank"), tuple(FAMILIES), chosen_device(settings))


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """Hold macOS, Metal, memory and MLX against the floor, and compute a small product."""
    from synapse_owned_metal import evidence
    from synapse_owned_metal.device import chosen_device

    return evidence.probe(chosen_device(settings))


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress, settings: BackendSettings) -> OwnedEngine:
    """Take the checkpoint to the device and compute one short row."""
    from synapse_host.owned_engine.loading import load_engine
    from synapse_owned_metal.bucket_ladder import MetalLadder
    from synapse_owned_metal.device import chosen_device
    from synapse_owned_metal.lane import lane_on

    device = chosen_device(settings)
    return load_engine(spec, device.dtypes, lane_on(device), progress, MetalLadder)


@hookimpl
def synapse_embed(model: OwnedEngine, batch: EmbedBatch, progress: Progress) -> Vectors:
    """Float32 [rows, dims] in the order of the batch."""
    return model.embed(batch, progress)


@hookimpl
def synapse_rerank(model: OwnedEngine, sequences: Sequence[TokenIds], progress: Progress) -> Vectors:
    """Float32 [rows], one score for each composed sequence, in their order."""
    return model.rerank(sequences, progress)


@hookimpl
def synapse_self_check(model: OwnedEngine, progress: Progress, settings: BackendSettings) -> Sequence[CheckNumbers]:
    """Every operation alone and a tiny model of every family, on the device the settings choose."""
    from synapse_host.owned_engine.engine import OwnedEngine
    from synapse_host.owned_engine.self_check import checked_numbers
    from synapse_owned_metal.bucket_ladder import MetalLadder
    from synapse_owned_metal.device import chosen_device
    from synapse_owned_metal.lane import lane_on
    from synapse_owned_metal.single_ops import SingleOps

    make = lane_on(chosen_device(settings))

    def engine(weights: CheckpointWeights, tiny: ModelSettings) -> OwnedEngine:
        return OwnedEngine(make(weights, tiny), tiny, MetalLadder(tiny.max_tokens))

    return checked_numbers(SingleOps(model.settings.dtype), engine, model.settings, progress)


@hookimpl
def synapse_unload(model: OwnedEngine) -> bool:
    """Drop graphs and weights."""
    model.unload()
    return True
