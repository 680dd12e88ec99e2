"""How a request comes to its lane: found, refused in one order, made ready. What all inference methods begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from synapse_host.admission.gate import Budget
from synapse_host.certification.alias_table import AliasTable
from synapse_host.certification.ledger import CertificationLedger
from synapse_host.certification.self_checks import SelfChecks, still_checking
from synapse_host.errors import DeadlineExceeded, SequenceTooLong, SynapseError
from synapse_host.hookspecs import Task
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import LOAD_WAIT_MS, Lane
from synapse_host.lanes.lane_state import LaneState
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.lanes.pausing import PauseControl
from synapse_host.lanes.resolution import resolve_lane
from synapse_host.operations.constraints import Constraints
from synapse_host.values import value_object


@value_object
class LaneDoor:
    """Finds the lane of a request and makes it ready, refusing in the serving check order (readings, section 1).

    Task, id, fingerprint, backend, install: ``resolve_lane``. Then, of the lane: pause, quarantine, its self-check, its
    certification. Length and admission follow in the methods themselves.
    """

    lanes: LaneTable
    shelf: CatalogShelf
    ledger: CertificationLedger
    aliases: AliasTable
    checks: SelfChecks
    pauses: PauseControl
    clock: Callable[[], float]

    async def certified_lane(self, task: Task, model: str | None, constraints: Constraints) -> Lane:
        """The lane that may answer; raises what ``available_lane`` and a missing certification raise."""
        lane = await self.available_lane(task, model, constraints)
        if lane.model.certifiable:
            self.ledger.require_certified(lane.model)
        return lane

    async def available_lane(self, task: Task, model: str | None, constraints: Constraints) -> Lane:
        """The lane asked for, certified or not; raises what ``resolve_lane``, a quarantine and a failed check raise."""
        wanted = constraints.fingerprint
        substitutes = self.aliases.equivalents(wanted) if wanted and constraints.accepts_equivalent else ()
        lane = await resolve_lane(
            self.lanes,
            self.shelf,
            task=task,
            model=model,
            required_fingerprint=wanted,
            equivalents=substitutes,
            preferred=lambda lane: self.ledger.is_certified(lane.model),
            required_epoch=constraints.required_epoch,
            table_epoch=self.aliases.epoch,
        )
        self.pauses.refuse(lane.model)
        lane.refuse_quarantined()
        self.checks.refuse_failed(lane)
        return lane

    async def ready(self, lane: Lane, budget: Budget) -> None:
        """Wait until ``lane`` may compute: loaded, and checked where it is one of the catalog (reading 18).

        Raises:
            ModelLoading, DeadlineExceeded: it was not ready in time.
            SynapseError: what load or check failed with; ``lane_paused``, where a pause began meanwhile.

        """
        began, loaded = self.clock(), lane.state is LaneState.READY
        await lane.ensure_ready(budget)
        self.pauses.refuse(lane.model)
        now = self.clock()
        remaining_ms = budget.remaining_ms(now)
        cap_ms = remaining_ms if loaded else LOAD_WAIT_MS - (now - began) * 1000

        def expired() -> SynapseError:
            if not loaded and remaining_ms <= cap_ms:
                return DeadlineExceeded(
                    f"deadline_ms of {budget.deadline_ms} passed before model {lane.model.model_id!r} had checked its "
                    "numbers; raise deadline_ms"
                )
            return still_checking(lane)

        await self.checks.require_passed(lane, max(0.0, min(remaining_ms, cap_ms)) / 1000, expired)
        self.pauses.refuse(lane.model)

    @staticmethod
    def refuse_too_long(lane: Lane, items: Sequence[str], tokens: Sequence[int]) -> None:
        """Refuse, naming its item, an input of more tokens than a lane of the catalog takes; others truncate it."""
        if lane.model.catalog_id is None:
            return
        limit = lane.model.max_tokens
        for item, count in zip(items, tokens, strict=True):
            if count > limit:
                name = lane.model.model_id
                raise SequenceTooLong(
                    f"item {item!r} has {count} tokens and model {name!r} takes {limit}; split or trim it",
                    details={"tokens": count, "max_tokens": limit, "item_id": item},
                )
