"""Execution permits: how many computations may run on one device at a time (reading 36: per device, not global)."""

from __future__ import annotations

import anyio


class DevicePermits:
    """One semaphore per device class, made when first asked for."""

    def __init__(self, per_device: int = 1) -> None:
        self._per_device = per_device
        self._permits: dict[str, anyio.Semaphore] = {}

    def of(self, device_class: str) -> anyio.Semaphore:
        """The permits of ``device_class``."""
        if device_class not in self._permits:
            self._permits[device_class] = anyio.Semaphore(self._per_device, fast_acquire=True)
        return self._permits[device_class]
