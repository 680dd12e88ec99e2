"""SELF_CHECK: what the plugin computed, as the header and the raw frame of its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from synapse_host.hookspecs import CheckNumbers, PluginError, Progress
from synapse_host.worker.loading import Resident
from synapse_host.worker.plugin_seam import Plugin


def self_check(plugin: Plugin, resident: Resident, progress: Progress) -> tuple[list[dict[str, Any]], memoryview]:
    """The header of every check in the plugin's order, and their numbers end to end as little-endian float32.

    Nothing is judged: numbers that are not finite are the host's finding.

    Raises:
        PluginError: inference_failed, where the plugin returned something else than checks.

    """
    checks: Sequence[CheckNumbers] = plugin.hook("synapse_self_check")(model=resident.model, progress=progress)
    arrays = [_values(check) for check in checks]
    headers = [_header(check, array) for check, array in zip(checks, arrays, strict=True)]
    flat = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, dtype="<f4")
    return headers, np.ascontiguousarray(flat, dtype="<f4").data.cast("B")


def _values(check: Any) -> Any:
    if not isinstance(check, CheckNumbers):
        raise PluginError("inference_failed", f"synapse_self_check returned {check!r:.200}, which is no CheckNumbers")
    values = np.asarray(check.values)
    if values.ndim != 2 or values.dtype != np.float32:
        raise PluginError(
            "inference_failed",
            f"check {check.label!r} of {check.subject!r} has {values.dtype} of shape {values.shape}; "
            "return float32 [rows, width]",
        )
    return values


def _header(check: CheckNumbers, values: Any) -> dict[str, Any]:
    return {
        "kind": check.kind,
        "subject": check.subject,
        "label": check.label,
        "rows": values.shape[0],
        "width": values.shape[1],
        "scale": float(check.scale),
        "fault": check.fault,
    }
