"""The Metal backend that generates. Entry point ``metal-decode``, engine ``owned-metal-decode``.

A backend of its own, because a worker says its engine before it is told what to load. Importing this module costs
nothing; each hook imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synapse_host.hookspecs import BackendDescription, CapabilityEvidence, LoadSpec, hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from synapse_host.hookspecs import BackendSettings, Generation, Progress, TokenIds
    from synapse_host.owned_engine.decoder import OwnedDecoder

ENGINE = "owned-metal-decode"


@hookimpl
def synapse_describe(settings: BackendSettings) -> BackendDescription:
    """Identity and abilities on the device the settings choose."""
    from synapse_host.owned_engine.family_table import FAMILIES
    from synapse_owned_metal.description import describe
    from synapse_owned_metal.device import chosen_device

    families = [name for name, family in FAMILIES.items() if family.next_token is not None]
    return describe("metal-decode", ENGINE, ("generate",), families, chosen_device(settings))


@hookimpl
def synapse_probe_capability(settings: BackendSettings) -> CapabilityEvidence:
    """The same device as ``owned-metal``'s."""
    from synapse_owned_metal import evidence
    from synapse_owned_metal.device import chosen_device

    return evidence.probe(chosen_device(settings))


@hookimpl
def synapse_load(spec: LoadSpec, progress: Progress, settings: BackendSettings) -> OwnedDecoder:
    """Take the checkpoint to the device and read one token."""
    from synapse_host.owned_engine.loading import load_decoder
    from synapse_owned_metal.device import chosen_device
    from synapse_owned_metal.lane import lane_on

    device = chosen_device(settings)
    return load_decoder(spec, device.dtypes, lane_on(device), progress)


@hookimpl
def synapse_generate(
    model: OwnedDecoder, prompt: TokenIds, options: Mapping[str, Any], progress: Progress
) -> Generation:
    """The ids after ``prompt``, greedily, over a cache of keys and values."""
    return model.generate(prompt, options, progress)


@hookimpl
def synapse_unload(model: OwnedDecoder) -> bool:
    """Drop the weights."""
    model.unload()
    return True
