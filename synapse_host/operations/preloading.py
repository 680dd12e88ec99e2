"""Models the settings name, loaded when the host starts: each is a ``model.load`` of the host's own.

An entry may name a profile. Its model is then checked against the published figures in the place of a probe, here,
before anybody asks for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from synapse_host.catalog.entries import Catalog
from synapse_host.certification.self_checks import SelfChecks, still_checking
from synapse_host.errors import SelfCheckFailed, StartRefused, SynapseError, from_wire
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.operations.registry import Registry, RequestContext
from synapse_host.values import value_object

_log = logging.getLogger(__name__)
#: Seconds between two looks at a load that goes on.
_LOOK_S = 0.2
#: Seconds a preload waits for the check of its model, which may compute for two.
CHECK_WAIT_S = 600.0


def refuse_reserved_preloads(entries: Sequence[Mapping[str, Any]], catalog: Catalog) -> None:
    """Raise ``StartRefused`` naming an entry whose id belongs to the catalog, lanes nobody declares included."""
    for entry in entries:
        name = entry.get("model_id")
        if isinstance(name, str) and catalog.reserves(name):
            raise StartRefused(
                f"preload.models names {name!r}, an id of the catalog; take the entry out and download the model with "
                "models.download, or give the entry another model_id"
            )


def with_profiles_of(models: Sequence[RegisteredModel], entries: Sequence[Mapping[str, Any]]) -> list[RegisteredModel]:
    """The stored ``models``; those whose profile the settings no longer name are without, as any model is."""
    named = {(entry.get("model_id"), entry.get("profile")) for entry in entries}
    return [model if (model.model_id, model.profile) in named else replace(model, profile=None) for model in models]


@value_object
class Preloads:
    """Loads what the settings name; ``methods`` are those of the host itself, which know profiles."""

    methods: Registry
    lanes: LaneTable
    checks: SelfChecks

    async def run(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Load every entry, one after another; one that is wrong or cannot be loaded is one WARN and is skipped."""
        for number, entry in enumerate(entries, 1):
            name = entry.get("model_id") or f"number {number}"
            try:
                await self._check(await _loaded(self.methods, entry))
            except SynapseError as refusal:
                told = "is loaded and does not serve" if isinstance(refusal, SelfCheckFailed) else "is skipped"
                _log.warning("preload %r %s: %s: %s", name, told, refusal.code, refusal.message)

    async def _check(self, model_id: str) -> None:
        lane = self.lanes.find(model_id)
        if lane is not None:
            await self.checks.require_passed(lane, CHECK_WAIT_S, lambda: still_checking(lane))


async def _loaded(registry: Registry, entry: Mapping[str, Any]) -> str:
    """Carry one load out; the id of the model. Raises what it failed with."""
    job = (await registry.dispatch("model.load", entry, RequestContext(time.monotonic()))).payload
    while job["state"] not in ("ready", "failed"):
        await anyio.sleep(_LOOK_S)
        asked = {"job_id": job["job_id"]}
        job = (await registry.dispatch("model.status", asked, RequestContext(time.monotonic()))).payload
    if job["state"] == "failed":
        raise from_wire(job["error"])
    return str(job["model_id"])
