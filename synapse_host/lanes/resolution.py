"""Which lane answers a request, decided from its model and constraints; never a substitute."""

from __future__ import annotations

from collections.abc import Callable, Collection

from synapse_host.errors import InvalidRequest, MigrationRequired, SubstitutionRejected
from synapse_host.hookspecs import Task
from synapse_host.lanes.lane import Lane
from synapse_host.lanes.lane_table import LaneTable


def resolve_lane(
    lanes: LaneTable,
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

    ``equivalents`` are identities that may stand in for the required one; of several lanes that have one, a
    ``preferred`` one is taken.

    Raises:
        InvalidRequest: no model named, or one of another task.
        UnknownModel: the id is not registered.
        SubstitutionRejected: the lane's fingerprint is not the required one.
        MigrationRequired: the caller's alias epoch is newer than the host's table.

    """
    lane = _named_lane(lanes, task, model, required_fingerprint, equivalents, preferred)
    if lane.model.task != task:
        raise InvalidRequest(
            f"model {lane.model.model_id!r} is for {lane.model.task}, not {task}; use a model of that task",
            details={"catalog_id": lane.model.model_id, "requested_task": task, "catalog_task": lane.model.task},
        )
    accepted = (required_fingerprint, *equivalents)
    if required_fingerprint is not None and lane.model.fingerprint not in accepted:
        raise SubstitutionRejected(
            f"model {lane.model.model_id!r} has fingerprint {lane.model.fingerprint}, "
            f"not the required {required_fingerprint!r}; rebuild the index or require the present one",
            details={"lane_id": lane.model.model_id, "required_fingerprint": required_fingerprint},
        )
    if required_epoch is not None and required_epoch > table_epoch:
        raise MigrationRequired(
            f"required_epoch {required_epoch} is newer than the host's alias table, epoch {table_epoch}; "
            "check the index with aliases.check_index",
            details={"required_epoch": required_epoch, "table_epoch": table_epoch},
        )
    return lane


def _named_lane(
    lanes: LaneTable,
    task: Task,
    model: str | None,
    required_fingerprint: str | None,
    equivalents: Collection[str],
    preferred: Callable[[Lane], bool],
) -> Lane:
    if model is not None:
        by_id = lanes.find(model)
        if by_id is not None:
            return by_id
        by_identity = next((lane for lane in lanes if lane.model.fingerprint == model), None)
        return by_identity or lanes.get(model)
    if required_fingerprint is not None:
        standing_in = (
            []
            if lanes.serves(required_fingerprint)
            else [lane for lane in lanes if lane.model.fingerprint in equivalents and lane.model.task == task]
        )
        first = next(filter(preferred, standing_in), next(iter(standing_in), None))
        return first or lanes.of_fingerprint(required_fingerprint)
    known = ", ".join(lane.model.model_id for lane in lanes if lane.model.task == task) or "none"
    raise InvalidRequest(
        f"no model named and no default for {task} is installed; give model, one of: {known}",
        details={"parameter": "model"},
    )
