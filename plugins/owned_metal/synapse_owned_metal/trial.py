"""The smallest computation that shows a device at work."""

from __future__ import annotations

from synapse_host.hookspecs import DType
from synapse_owned_metal.device import Device
from synapse_owned_metal.mlx_types import MX_DTYPES
from synapse_owned_metal.runtime import mx


def run_trial(device: Device, dtype: DType) -> None:
    """Double small whole numbers by a product; raises ``RuntimeError`` when they come out wrong."""
    mx.set_default_device(mx.gpu if device.kind == "metal" else mx.cpu)
    given = mx.arange(48, dtype=mx.float32).reshape(3, 16).astype(MX_DTYPES[dtype])
    doubled = mx.matmul(given, mx.eye(16, dtype=MX_DTYPES[dtype]) * 2.0)
    if not mx.array_equal(doubled, given + given).item():
        raise RuntimeError(f"a {dtype} product of small whole numbers came out wrong")
