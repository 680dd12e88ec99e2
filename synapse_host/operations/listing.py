"""models.list: every registered model with what its lane accepts and what is known about it."""

from __future__ import annotations

from typing import Any

from synapse_host.certification.alias_table import AliasTable
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_check import NOT_APPLICABLE
from synapse_host.certification.self_checks import SelfChecks
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl
from synapse_host.operations.constraints import Params
from synapse_host.operations.registry import Method, Reply, RequestContext
from synapse_host.values import value_object


class ModelsListParams(Params):
    """Takes nothing."""


@value_object
class ListingService:
    """Lists lanes. A field whose fact is not known is left out, never null (wire contract section 5)."""

    lanes: LaneTable
    shelf: CatalogShelf
    checks: SelfChecks
    ledger: CertificationLedger
    aliases: AliasTable
    pauses: PauseControl
    module_generation: int

    def methods(self) -> list[Method]:
        """The methods of this module."""
        return [Method("models.list", "query", ModelsListParams, self.list)]

    async def list(self, params: ModelsListParams, context: RequestContext) -> Reply:
        """All models, sorted by id; those of the catalog where they are installed and run."""
        await self.shelf.fill()
        return Reply(
            {
                "module_generation": self.module_generation,
                "table_epoch": self.aliases.epoch,
                "models": [self._row(lane) for lane in self.lanes],
                "alias_rows": [alias.to_wire() for alias in self.aliases.rows],
            }
        )

    def _row(self, lane: Lane) -> dict[str, Any]:
        model = lane.model
        certification = self.ledger.certification(model)
        performance = self.ledger.performance(model)
        row: dict[str, Any] = {
            "model_id": model.model_id,
            "state": str(lane.state),
            "task": model.task,
            "backend": model.backend,
            "engine": model.engine.engine,
            "fingerprints": [model.fingerprint],
            "max_tokens": model.max_tokens,
            "max_tokens_source": _source(lane),
            "dtype": model.dtype,
            "device_class": model.device_class,
            "rows_computed": lane.rows_computed,
        }
        certified = certification is not None and certification.status == "certified"
        optional = {
            "certified": certified if model.certifiable else None,
            "recommended_batch": {"rows": model.batch.rows, "token_budget": model.batch.token_budget},
            "bucket_ladder": list(lane.buckets) if lane.buckets else None,
            "dims": lane.dims or None,
            "resident_shapes": shapes if (shapes := lane.health.resident_shapes) is None else list(shapes),
            "warm_load_cost_hint_ms": performance.cold_load_ms if performance else lane.cold_load_ms,
        }
        if (pause := self.pauses.state.pause) is not None and self.pauses.concerns(model):
            row.update(paused_until_ms=pause.until_ms, pause_reason=pause.reason)
        row.update({name: value for name, value in optional.items() if value is not None})
        if model.catalog_id is not None:
            return row | self._of_catalog(lane)
        return row | (self._of_profile(lane) if model.profile else {"self_check": dict(NOT_APPLICABLE)})

    def _of_profile(self, lane: Lane) -> dict[str, Any]:
        """What a preload with a profile has in the place of certification."""
        check = self.checks.row(lane)
        return {"self_check": check.to_wire(), "profile": lane.model.profile, "certified": check.state == "passed"}

    def _of_catalog(self, lane: Lane) -> dict[str, Any]:
        """What a lane of the catalog has in the place of certification; certified and admission go next release."""
        check = self.checks.row(lane)
        failed = {"serving_admission_reason": "self_check_failed"} if check.state == "failed" else {}
        return {
            "self_check": check.to_wire(),
            "catalog_id": lane.model.catalog_id,
            "certified": check.state == "passed",
            "serving_admission": "disabled" if failed else "enabled",
            **failed,
        }


def _source(lane: Lane) -> str:
    """Where ``max_tokens`` comes from: what the worker said, or what was set down for the model."""
    if lane.state is not LaneState.READY:
        return "catalog_unloaded"
    return "worker_bucket" if lane.buckets else "catalog"
