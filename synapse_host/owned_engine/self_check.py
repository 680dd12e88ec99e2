"""What an owned backend computes to be checked: every operation alone, and a tiny model of every family end to end.

Inputs are seeded and rounded to what every dtype holds, so that one run of the reference serves lanes of any dtype.
Nothing is judged here: the numbers go to the host, which holds them against the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import CheckKind, CheckNumbers, EmbedBatch, Progress, Task
from synapse_host.magnifiers.magnifier import Magnifier
from synapse_host.magnifiers.table import MAGNIFIED, magnifier_of
from synapse_host.ops.case_bench import Measured, OpBench, OpCase, OpsUnderTest, coarsest
from synapse_host.ops.op_cases import OP_CASES
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.family_table import family_named
from synapse_host.owned_engine.weights import CheckpointWeights

Float32: TypeAlias = npt.NDArray[np.float32]
#: Makes an engine over weights as a backend makes that of a loaded model.
NewEngine: TypeAlias = Callable[[CheckpointWeights, ModelSettings], OwnedEngine]
#: Rows of a magnifying model that are run: one of the two it has of each length.
_EVERY = 2
_NOTHING = np.empty((0, 0), dtype=np.float32)


def checked_numbers(
    subject: OpsUnderTest, new_engine: NewEngine, settings: ModelSettings, progress: Progress
) -> list[CheckNumbers]:
    """Every check of a backend, operations first, in the order of the contract.

    ``subject`` carries arrays to and from single operations in the lane's dtype, ``new_engine`` makes an engine as a
    model's own is made; dtype and threads are those of ``settings``. A check that raises is one with a ``fault``.
    """
    checks: list[CheckNumbers] = []
    for case in OP_CASES:
        checks += _operation(subject, case)
        progress(len(checks), "inference")
    for family in MAGNIFIED:
        checks += _family(new_engine, settings, magnifier_of(family))
        progress(len(checks), "inference")
    return checks


def _operation(subject: OpsUnderTest, case: OpCase) -> list[CheckNumbers]:
    try:
        measured = case.run(OpBench(subject, case, coarsest))
        return [_measured(case, one) for one in measured]
    except Exception as problem:  # whatever an operation raises is a finding about that operation
        return [CheckNumbers("operation", case.op, case.label, _NOTHING, fault=_said(problem))]


def _measured(case: OpCase, one: Measured) -> CheckNumbers:
    values = np.asarray(one.values, dtype=np.float32)
    if one.valid is not None:
        values = values[np.broadcast_to(one.valid, values.shape)]
    scale = math.sqrt(one.reduction) * float(one.magnitude)
    return CheckNumbers("operation", case.op, f"{case.label}: {one.what}", values.reshape(1, -1), scale)


def _family(new_engine: NewEngine, settings: ModelSettings, model: Magnifier) -> Iterator[CheckNumbers]:
    for kind, task, run in _WAYS:
        if task == "rerank" and family_named(model.family).score is None:
            continue
        try:
            engine = _engine(new_engine, settings, model, task)
            try:
                values = run(engine, model)
            finally:
                engine.unload()
            yield CheckNumbers(kind, model.family, kind, values)
        except Exception as problem:
            yield CheckNumbers(kind, model.family, kind, _NOTHING, fault=_said(problem))


def _engine(new_engine: NewEngine, settings: ModelSettings, model: Magnifier, task: Task) -> OwnedEngine:
    tiny = replace(
        settings,
        family=family_named(model.family),
        config=model.config,
        max_tokens=model.max_tokens,
        task=task,
        separator=model.separator if task == "rerank" else None,
    )
    return new_engine(CheckpointWeights.of_arrays(model.tensors), tiny)


def _embed(engine: OwnedEngine, model: Magnifier) -> Float32:
    rows = [np.array(row, dtype=np.int32) for row in model.rows[::_EVERY]]
    names = [str(place) for place in range(len(rows))]
    batch = EmbedBatch(np.concatenate(rows), [len(row) for row in rows], names, model.pooling, True)
    return engine.embed(batch, _silent)


def _rerank(engine: OwnedEngine, model: Magnifier) -> Float32:
    rows = [np.array(row, dtype=np.int32) for row in model.pairs[::_EVERY]]
    return engine.rerank(rows, _silent).reshape(-1, 1)


#: What of a family's model is run: the kind of numbers, the task it is loaded for, the run.
_WAYS: tuple[tuple[CheckKind, Task, Callable[[OwnedEngine, Magnifier], Float32]], ...] = (
    ("vectors", "embed", _embed),
    ("scores", "rerank", _rerank),
)


def _silent(completed: int, phase: str, token_ids: object = ()) -> None:
    """Segments of a tiny model are no news."""


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:500]
