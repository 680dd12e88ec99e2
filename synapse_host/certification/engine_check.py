"""The numbers of a backend's operations and tiny models, held against the reference's. Pure numpy.

Each operation may differ by ``tolerances.op_bound``, with the reference's own measure of what was summed; a family's
tiny model by the floors of the magnifying model. A miss begins with the name of the operation or family at fault, and
misses come in the order of the operations, so that the first is the one the others may follow from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.certification.metrics import cosines
from synapse_host.certification.score_metrics import pearson
from synapse_host.hookspecs import CheckNumbers, DType, Task
from synapse_host.tolerances import FLOORS, SCORE_LIMITS, op_bound
from synapse_host.values import value_object

Float64: TypeAlias = npt.NDArray[np.float64]
#: The numbers of a family's model that decide for a lane of a task: a reranker has the encoder and the head.
_KINDS_OF_TASK: Mapping[Task, tuple[str, ...]] = {"embed": ("vectors",), "rerank": ("vectors", "scores")}


@value_object
class EngineFindings:
    """What was missed, a sentence each, and the evidence to keep."""

    missed: list[str]
    evidence: dict[str, Any] = field(default_factory=dict)


def judge_engine(
    lane: Sequence[CheckNumbers], reference: Sequence[CheckNumbers], *, dtype: DType, family: str, task: Task
) -> EngineFindings:
    """Judge a lane's checks. Every operation decides, and of the tiny models that of the lane's family and task.

    What else there is stands in the evidence: ``shares`` are the largest part of its tolerance each operation took,
    ``families`` the figure of each model, ``failed`` every miss of either.
    """
    found = {_name(check): check for check in lane}
    shares: dict[str, float] = {}
    families: dict[str, float] = {}
    failed: list[str] = []
    missed: list[str] = []
    for wanted in reference:
        check = found.get(_name(wanted))
        own = wanted.subject == family and wanted.kind in _KINDS_OF_TASK.get(task, ())
        decides = wanted.kind == "operation" or own
        misses = [_unusable(wanted, check)] if _unusable(wanted, check) else []
        if check is not None and not misses:
            misses = [*_judged(wanted, check, dtype, shares, families)]
        failed += misses
        missed += misses if decides else []
    evidence = {
        "checks": len(reference),
        "operations": len({check.subject for check in reference if check.kind == "operation"}),
        "shares": {op: round(share, 3) for op, share in shares.items() if share},
        "families": families,
        "failed": failed,
    }
    return EngineFindings(missed, evidence)


def _name(check: CheckNumbers) -> tuple[str, str, str]:
    return check.kind, check.subject, check.label


def _said(check: CheckNumbers) -> str:
    if check.kind == "operation":
        return f"operation {check.subject} ({check.label})"
    return f"{check.kind} on the magnifying model of {check.subject}"


def _unusable(wanted: CheckNumbers, check: CheckNumbers | None) -> str:
    if check is None:
        return f"{_said(wanted)}: the backend did not compute it"
    if check.fault:
        return f"{_said(wanted)}: {check.fault}"
    if check.values.shape != wanted.values.shape:
        return f"{_said(wanted)}: shape {check.values.shape}, the reference has {wanted.values.shape}"
    return "" if np.isfinite(check.values).all() else f"{_said(wanted)}: numbers that are not finite"


def _judged(
    wanted: CheckNumbers, check: CheckNumbers, dtype: DType, shares: dict[str, float], families: dict[str, float]
) -> Iterator[str]:
    ours, theirs = check.values.astype(np.float64), wanted.values.astype(np.float64)
    if wanted.kind == "operation":
        yield from _operation(wanted, ours, theirs, dtype, shares)
        return
    figure, floor, what = (
        (float(cosines(ours, theirs).min()), FLOORS[dtype].magnified_min_cosine, "min cosine")
        if wanted.kind == "vectors"
        else (pearson(ours[:, 0], theirs[:, 0]), SCORE_LIMITS[dtype].magnified_min_pearson, "Pearson correlation")
    )
    families[f"{wanted.subject} {wanted.kind}"] = figure
    if not figure >= floor:
        yield f"{what} on the magnifying model of {wanted.subject} in {dtype} is {figure:.7f}, below {floor}"


def _operation(
    wanted: CheckNumbers, ours: Float64, theirs: Float64, dtype: DType, shares: dict[str, float]
) -> Iterator[str]:
    error = float(np.abs(ours - theirs).max(initial=0.0))
    bound = op_bound(wanted.subject, dtype, magnitude=wanted.scale)
    share = error / bound if bound else float(error > 0)
    shares[wanted.subject] = max(share, shares.get(wanted.subject, 0.0))
    if not error <= bound:
        yield f"{_said(wanted)}: off by {error:.3g}, {bound:.3g} is allowed in {dtype}"
