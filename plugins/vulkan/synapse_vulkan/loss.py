"""A lost device ends the worker: nothing on it can be read or freed, and drivers rarely let one process start over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from synapse_host.hookspecs import DeviceGone, PluginError
from synapse_vulkan.binding import DeviceLost


@contextmanager
def device_loss_typed() -> Iterator[None]:
    """Turn the loss of the device, however deep its cause, into the refusal after which the worker ends."""
    try:
        yield
    except (DeviceLost, PluginError) as failure:
        cause: BaseException | None = failure
        while cause is not None:
            if isinstance(cause, DeviceLost):
                raise DeviceGone(str(cause)) from failure
            cause = cause.__cause__
        raise
