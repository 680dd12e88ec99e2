"""PING: what a worker says of itself."""

from __future__ import annotations

from synapse_host.worker.loading import ResidentModels
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker.resident_memory import resident_mebibytes
from synapse_host.worker_protocol.messages import Ping, Pong


def pong(plugin: Plugin, models: ResidentModels, request: Ping) -> Pong:
    """The answer to ``request``; what a backend does not have is left out."""
    return Pong(
        request.req_id,
        resident_mebibytes(),
        len(models),
        _placement_share(plugin, models),
        _buckets(models),
        _resident_shapes(plugin, models),
    )


def _placement_share(plugin: Plugin, models: ResidentModels) -> float | None:
    """The lowest share of any loaded model that has one by now: certification gates on it."""
    if "synapse_placement" not in plugin.operations:
        return None
    hook = plugin.hook("synapse_placement")
    shares = [hook(model=resident.model) for resident in models.by_ref.values()]
    return min((float(share) for share in shares if share is not None), default=None)


def _buckets(models: ResidentModels) -> list[int] | None:
    ladder = {bucket for resident in models.by_ref.values() for bucket in resident.buckets or ()}
    return sorted(ladder) or None


def _resident_shapes(plugin: Plugin, models: ResidentModels) -> dict[str, list[int]] | None:
    if "synapse_admit_shape" not in plugin.operations:
        return None
    return {model_ref: sorted(resident.shapes) for model_ref, resident in models.by_ref.items()}
