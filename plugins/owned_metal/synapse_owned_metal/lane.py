"""Makes the backend of one lane: its weights on the device and the device's memory held to the lane's budget."""

from __future__ import annotations

from collections.abc import Callable

from synapse_host.hookspecs import PluginError
from synapse_host.owned_engine.engine import ModelSettings
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_owned_metal.device import Device
from synapse_owned_metal.evidence import judge, read_machine
from synapse_owned_metal.lane_limits import limit_lane
from synapse_owned_metal.mlx_backend import MlxBackend


def lane_on(device: Device) -> Callable[[CheckpointWeights, ModelSettings], MlxBackend]:
    """The factory ``owned_engine.loading`` asks for.

    Raises:
        PluginError: backend_missing, when the device is not there.

    """
    verdict = judge(read_machine(), device)
    if verdict.status == "refused":
        raise PluginError("backend_missing", f"the {device.kind} device of MLX cannot be used: {verdict.message}")

    def make(weights: CheckpointWeights, settings: ModelSettings) -> MlxBackend:
        backend = MlxBackend(weights, device=device, max_tokens=settings.max_tokens, dtype=settings.dtype)
        limit_lane(backend.weight_bytes, settings, device)
        return backend

    return make
