"""Admission and eviction of what a backend compiles apart from loading: sequence shapes and packed programs."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from synapse_host.hookspecs import BackendDescription, PluginError, Progress
from synapse_host.worker.loading import Resident
from synapse_host.worker.plugin_seam import Plugin
from synapse_host.worker_protocol.messages import AdmitShape, EvictShape, PackedAdmit, PackedEvict


def admit_shape(plugin: Plugin, resident: Resident, request: AdmitShape, progress: Progress) -> Mapping[str, Any]:
    """The inventory after ``request.shape`` was compiled; raises ``PluginError``, or whatever the hook raises."""
    if not request.shape:
        raise PluginError("invalid_request", "shape is 0; a sequence shape has at least one token")
    hook = plugin.hook("synapse_admit_shape")
    inventory = hook(model=resident.model, shape=request.shape, progress=progress)
    resident.shapes.add(request.shape)
    return _plain_inventory(inventory, "synapse_admit_shape")


def evict_shape(plugin: Plugin, resident: Resident, request: EvictShape, progress: Progress) -> None:
    """Drop a compiled shape; raises ``PluginError`` when it is not there or the plugin keeps it."""
    _check_admitted("shape", request.shape, request.model_ref, resident.shapes)
    hook = plugin.hook("synapse_evict_shape")
    _check_gone(hook(model=resident.model, shape=request.shape, progress=progress), f"shape {request.shape}")
    resident.shapes.discard(request.shape)


def admit_packed(
    plugin: Plugin, description: BackendDescription, resident: Resident, request: PackedAdmit, progress: Progress
) -> Mapping[str, Any]:
    """The inventory after the packed program was compiled; raises ``PluginError``, or whatever the hook raises."""
    widths = () if description.packed is None else description.packed.widths
    if request.width not in widths:
        offered = ", ".join(map(str, widths)) or "none"
        raise PluginError("invalid_request", f"width {request.width} is none that HELLO offers; it offers {offered}")
    hook = plugin.hook("synapse_admit_packed")
    inventory = hook(model=resident.model, width=request.width, progress=progress)
    resident.packed_widths.add(request.width)
    return _plain_inventory(inventory, "synapse_admit_packed")


def evict_packed(plugin: Plugin, resident: Resident, request: PackedEvict, progress: Progress) -> None:
    """Drop a packed program; raises ``PluginError`` when it is not there or the plugin keeps it."""
    _check_admitted("width", request.width, request.model_ref, resident.packed_widths)
    hook = plugin.hook("synapse_evict_packed")
    _check_gone(hook(model=resident.model, width=request.width, progress=progress), f"width {request.width}")
    resident.packed_widths.discard(request.width)


def _check_admitted(what: str, wanted: int, model_ref: str, admitted: set[int]) -> None:
    if wanted not in admitted:
        have = ", ".join(map(str, sorted(admitted))) or "none"
        raise PluginError(
            "shape_not_admitted", f"{what} {wanted} of {model_ref!r} is not compiled here; compiled: {have}"
        )


def _check_gone(answer: Any, what: str) -> None:
    if answer is not True:
        raise PluginError("inference_failed", f"the backend did not give up {what}; restart the worker")


def _plain_inventory(inventory: Any, hook: str) -> Mapping[str, Any]:
    """``inventory`` in JSON's own types; what stands in it is judged with the rest of the reply."""
    try:
        executables = [
            {"id": program["id"], "layers": [operator.index(layer) for layer in program["layers"]]}
            for program in inventory["executables"]
        ]
        return {"executables": executables, "cpu_stages": [*inventory["cpu_stages"]]}
    except (KeyError, TypeError) as problem:
        raise TypeError(f"{hook} returned no inventory of executables and cpu_stages: {problem!r}") from problem
