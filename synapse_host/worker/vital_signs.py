"""PING: what a worker says of itself."""

from __future__ import annotations

from synapse_host.worker.loading import ResidentModels
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.resident_memory import resident_mebibytes
from synapse_host.worker_protocol.messages import Ping, Pong


def pong(plugin: Plugin, models: ResidentModels, request: Ping) -> Pong:
    """The answer to ``request``; what a backend does not have is left out."""
    shares = _placement_shares(plugin, models)
    return Pong(
        request.req_id,
        resident_mebibytes(),
        len(models),
        min(shares.values(), default=None),
        _buckets(models),
        _resident_shapes(plugin, models),
        shares or None,
    )


def _placement_shares(plugin: Plugin, models: ResidentModels) -> dict[str, float]:
    """The share of each loaded model that has one by now: certification gates on it."""
    if "synapse_placement" not in plugin.operations:
        return {}
    hook = plugin.hook("synapse_placement")
    shares = {model_ref: hook(model=resident.model) for model_ref, resident in models.by_ref.items()}
    return {model_ref: float(share) for model_ref, share in shares.items() if share is not None}


def _buckets(models: ResidentModels) -> list[int] | None:
    ladder = {bucket for resident in models.by_ref.values() for bucket in resident.buckets or ()}
    return sorted(ladder) or None


def _resident_shapes(plugin: Plugin, models: ResidentModels) -> dict[str, list[int]] | None:
    if "synapse_admit_shape" not in plugin.operations:
        return None
    return {model_ref: sorted(resident.shapes) for model_ref, resident in models.by_ref.items()}
