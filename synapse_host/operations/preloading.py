"""Models the settings name, loaded when the host starts: each is a ``model.load`` of the host's own."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import anyio

from synapse_host.catalog.entries import Catalog
from synapse_host.errors import StartRefused, SynapseError
from synapse_host.operations.registry import Registry, RequestContext

_log = logging.getLogger(__name__)
#: Seconds between two looks at a load that goes on.
_LOOK_S = 0.2


def refuse_reserved_preloads(entries: Sequence[Mapping[str, Any]], catalog: Catalog) -> None:
    """Raise ``StartRefused`` naming an entry whose id belongs to the catalog, lanes nobody declares included."""
    for entry in entries:
        name = entry.get("model_id")
        if isinstance(name, str) and catalog.reserves(name):
            raise StartRefused(
                f"preload.models names {name!r}, an id of the catalog; take the entry out and download the model with "
                "models.download, or give the entry another model_id"
            )


async def preload(registry: Registry, entries: Sequence[Mapping[str, Any]]) -> None:
    """Load every entry, one after another; one that is wrong or cannot be loaded is one WARN and is skipped."""
    for number, entry in enumerate(entries, 1):
        name = entry.get("model_id") or f"number {number}"
        try:
            fault = await _loaded(registry, entry)
        except SynapseError as refusal:
            fault = refusal.to_wire()
        if fault is not None:
            _log.warning("preload %r is skipped: %s: %s", name, fault["code"], fault["message"])


async def _loaded(registry: Registry, entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Carry one load out; its error where it failed."""
    job = (await registry.dispatch("model.load", entry, RequestContext(time.monotonic()))).payload
    while job["state"] not in ("ready", "failed"):
        await anyio.sleep(_LOOK_S)
        asked = {"job_id": job["job_id"]}
        job = (await registry.dispatch("model.status", asked, RequestContext(time.monotonic()))).payload
    error: Mapping[str, Any] | None = job.get("error")
    return error
