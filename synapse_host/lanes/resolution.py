"""Which lane answers a request, decided from its model and constraints; never a substitute.

The first steps of the serving check order (readings, section 1): task, id, fingerprint, backend, install. What is left
to check belongs to the lane that was found.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from synapse_host.catalog.entries import Catalog, CatalogBackend, CatalogEntry
from synapse_host.errors import InvalidRequest, MigrationRequired, SubstitutionRejected, UnknownModel
from synapse_host.hookspecs import Task
from synapse_host.lanes.backend_choice import NOT_OWNED, OWNED_ONLY
from synapse_host.lanes.catalog_shelf import CatalogShelf
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable
from synapse_host.models.registered_model import RegisteredModel
from synapse_host.values import value_object


@value_object
class CatalogTarget:
    """An entry, and the row where the request pins one."""

    entry: CatalogEntry
    row: CatalogBackend | None

    @property
    def task(self) -> str:
        """What the entry is for."""
        return self.entry.task

    @property
    def model_id(self) -> str:
        """The id that was meant."""
        return self.entry.lane_id(self.row.backend) if self.row else self.entry.id


@value_object
class FreeFormTarget:
    """A lane of a model an operator loaded."""

    lane: Lane

    @property
    def task(self) -> str:
        """What the model is for."""
        return self.lane.model.task

    @property
    def model_id(self) -> str:
        """Its id."""
        return self.lane.model.model_id


Target = CatalogTarget | FreeFormTarget


async def resolve_lane(
    lanes: LaneTable,
    shelf: CatalogShelf,
    *,
    task: Task,
    model: str | None,
    required_fingerprint: str | None,
    equivalents: Collection[str] = (),
    preferred: Callable[[Lane], bool] = lambda lane: True,
    required_epoch: int | None,
    table_epoch: int,
) -> Lane:
    """The lane for ``model``, which may be an id or a fingerprint, or for ``required_fingerprint`` alone.

    Without either it is the task's default entry. ``equivalents`` are identities that may stand in for the required
    one; of several lanes that have one, a ``preferred`` one is taken. None stands in for a pin of the catalog, and no
    lane of the catalog for anything.

    Raises:
        InvalidRequest: no model named and no default, or a model of another task.
        UnknownModel: the id is neither of the catalog nor registered.
        SubstitutionRejected: the lane's fingerprint is not the required one.
        MigrationRequired: the caller's alias epoch is newer than the host's table.
        BackendUnavailable: the model is of the catalog and does not run here.
        SynapseError: ``model_not_installed``.

    """
    catalog = shelf.standing.catalog
    equivalents = _substitutes(catalog, required_fingerprint, equivalents)
    target = _named(lanes, catalog, task, model, required_fingerprint)
    if target is None:
        assert required_fingerprint is not None
        target = FreeFormTarget(_of_fingerprint(lanes, task, required_fingerprint, equivalents, preferred))
    _refuse_other_task(target, task)
    if required_fingerprint is not None:
        target = _agreeing(target, required_fingerprint, equivalents)
    if required_epoch is not None and required_epoch > table_epoch:
        raise MigrationRequired(
            f"required_epoch {required_epoch} is newer than the host's alias table, epoch {table_epoch}; "
            "check the index with aliases.check_index",
            details={"required_epoch": required_epoch, "table_epoch": table_epoch},
        )
    if isinstance(target, FreeFormTarget):
        return target.lane
    return await shelf.select(target.entry, target.row)


async def lane_of(lanes: LaneTable, shelf: CatalogShelf, model_id: str) -> Lane:
    """The lane of an id or fingerprint, whatever its task; a catalog id selects as it does for serving.

    Raises:
        UnknownModel: the id is neither of the catalog nor registered.
        BackendUnavailable: the model is of the catalog and does not run here.
        SynapseError: ``model_not_installed``.

    """
    target = find_target(lanes, shelf.standing.catalog, model_id)
    if target is None:
        raise unknown_model(lanes, shelf.standing.catalog, model_id)
    return target.lane if isinstance(target, FreeFormTarget) else await shelf.select(target.entry, target.row)


def refuse_reserved(catalog: Catalog, model_id: str, remedy: str) -> None:
    """Raise ``InvalidRequest`` for an id that belongs to the catalog, a lane that no entry declares included."""
    entry = catalog.entry(model_id)
    derived = catalog.derived(model_id)
    if entry is None and derived is not None:
        entry = derived[0]
    if entry is not None:
        raise InvalidRequest(
            f"{model_id!r} belongs to the catalog model {entry.id!r}; {remedy}",
            details={"model_id": model_id, "catalog_id": entry.id},
        )


def why_not_restored(model: RegisteredModel, catalog: Catalog) -> str | None:
    """Why a stored model must not serve any more, or None: rules may have come since it was stored."""
    if catalog.reserves(model.model_id):
        return "its id belongs to the catalog; download that model, or load this one under another id"
    if model.task in OWNED_ONLY and model.backend in NOT_OWNED:
        return f"backend {model.backend!r} may not serve {model.task}; load it on an owned engine"
    return None


def find_target(lanes: LaneTable, catalog: Catalog, model: str) -> Target | None:
    """What ``model`` means: a catalog id, a declared lane id, a pin, a registered id or its fingerprint; else None."""
    entry = catalog.entry(model)
    if entry is not None:
        return CatalogTarget(entry, None)
    declared = catalog.lane(model) or catalog.of_fingerprint(model)
    if declared is not None:
        return CatalogTarget(*declared)
    lane = lanes.find(model) or next((lane for lane in lanes if lane.model.fingerprint == model), None)
    return None if lane is None else FreeFormTarget(lane)


def unknown_model(lanes: LaneTable, catalog: Catalog, model: str, task: Task | None = None) -> UnknownModel:
    """The refusal of an id that means nothing here; only models of ``task`` are named, where one was asked for."""
    loaded = {lane.model.model_id for lane in lanes if task in (None, lane.model.task)}
    known = sorted(loaded | {entry.id for entry in catalog if task in (None, entry.task)})
    told = "known" if task is None else f"known for {task}"
    remedy = "Use one of them, or load it with model.load" if known else "Load it with model.load"
    return UnknownModel(
        f"no model {model!r}; {told} are {', '.join(known) or 'none'}. {remedy}", details={"model_id": model}
    )


def _named(lanes: LaneTable, catalog: Catalog, task: Task, model: str | None, fingerprint: str | None) -> Target | None:
    """What the request means; None where it names an identity alone, and none of the catalog."""
    if model is not None:
        target = find_target(lanes, catalog, model)
        if target is None:
            raise unknown_model(lanes, catalog, model, task)
        return target
    if fingerprint is not None:
        pinned = catalog.of_fingerprint(fingerprint)
        return CatalogTarget(*pinned) if pinned else None
    default = catalog.default(task)
    if default is not None:
        return CatalogTarget(default, None)
    known = ", ".join(lane.model.model_id for lane in lanes if lane.model.task == task) or "none"
    raise InvalidRequest(
        f"no model named and {task} has no default; give model, one of: {known}", details={"parameter": "model"}
    )


def _refuse_other_task(target: Target, task: Task) -> None:
    if target.task != task:
        name = target.entry.id if isinstance(target, CatalogTarget) else target.model_id
        raise InvalidRequest(
            f"model {name!r} is for {target.task}, not {task}; use a model of that task",
            details={"catalog_id": name, "requested_task": task, "catalog_task": target.task},
        )


def _substitutes(catalog: Catalog, fingerprint: str | None, equivalents: Collection[str]) -> Collection[str]:
    """What may stand in for ``fingerprint``: nothing for a pin of the catalog."""
    return () if fingerprint is not None and catalog.of_fingerprint(fingerprint) is not None else equivalents


def _of_fingerprint(
    lanes: LaneTable, task: Task, fingerprint: str, equivalents: Collection[str], preferred: Callable[[Lane], bool]
) -> Lane:
    """The registered lane of an identity, else one that may stand in for it; raises ``SubstitutionRejected``."""
    if lanes.serves(fingerprint):
        return lanes.of_fingerprint(fingerprint)
    standing_in = [
        lane
        for lane in lanes
        if lane.model.fingerprint in equivalents and lane.model.task == task and lane.model.catalog_id is None
    ]
    first = next(filter(preferred, standing_in), next(iter(standing_in), None))
    return first or lanes.of_fingerprint(fingerprint)


def _agreeing(target: Target, fingerprint: str, equivalents: Collection[str]) -> Target:
    """``target`` pinned to the row of ``fingerprint``; raises ``SubstitutionRejected`` where that is another's."""
    lane_id: str | None = target.model_id
    if isinstance(target, FreeFormTarget):
        actual = target.lane.model.fingerprint
        if actual == fingerprint or actual in equivalents:
            return target
    else:
        rows = [target.row] if target.row else list(target.entry.backends)
        agreeing = next((row for row in rows if row.fingerprint == fingerprint), None)
        if agreeing is not None:
            return CatalogTarget(target.entry, agreeing)
        actual = " or ".join(row.fingerprint for row in rows) or "none"
        lane_id = target.model_id if target.row else None
    raise SubstitutionRejected(
        f"model {target.model_id!r} has fingerprint {actual}, not the required {fingerprint!r}; "
        "rebuild the index or require the present one",
        details={"lane_id": lane_id, "required_fingerprint": fingerprint},
    )
