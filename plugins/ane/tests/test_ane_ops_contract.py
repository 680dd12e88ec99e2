"""Every tensor operation as a recorded program, run by the interpreter in half precision, against the reference.

A program takes one row, so the rows of a case are recorded and run one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_ane import interpreted
from synapse_ane.mil import TARGET, Function, Var, constant, mb, types
from synapse_ane.program_inputs import LAST, SHARE, VISIBLE, RowCounts, count_inputs, looked_up
from synapse_ane.program_ops import ProgramOps

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.weight_source import WeightSource
from synapse_host.testing.ops_contract import OP_CASES, OpCase, OpsMismatch, OpsUnderTest, check_op

#: What a program of one fixed shape does not do, and refuses: it keeps no cache and picks no tokens.
REFUSED = {
    "attention: causal after 6 cached tokens",
    "attention: one token after 20, window of 4",
    "kv_append: two layers, one token more each, then back to 4",
    "argmax: ties go to the lowest index",
}


class RowByRow:
    """``ProgramOps`` over every row of a batch in turn; weights and tables are shared."""

    def __init__(self, weights: WeightSource, max_tokens: int) -> None:
        self._ops = _Ops(weights, 0, max_tokens=max_tokens)

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._ops, name)

        def call(*given: Any, **named: Any) -> Any:
            rows = max((len(each) for each in (*given, *named.values()) if isinstance(each, _PerRow)), default=0)
            batches = [each for each in given if isinstance(each, Batch)]
            # Positions are the same for every row, and come as one.
            rows = max([rows, *(1 if name == "positions" else len(each.counts) for each in batches)])
            if not rows:
                return step(*given, **named)
            results = []
            for row in range(rows):
                if batches:
                    self._ops.set_length(len(batches[0].ids[row]))
                results.append(step(*[_row(each, row) for each in given], **named))
            if isinstance(results[0], tuple):
                return tuple(_PerRow(column) for column in zip(*results, strict=True))
            return _PerRow(results)

        return call


class _Ops(ProgramOps):
    def set_length(self, length: int) -> None:
        self._length = length

    def embedding(self, ids: Any, table: Any) -> Var:
        return mb.const(val=looked_up(table.values, ids))


class _PerRow(list[Any]):
    """A handle of the contract: one value for each row."""


def _row(given: Any, row: int) -> Any:
    if isinstance(given, Batch):
        return Batch(given.ids[row], given.counts[row], given.start)
    return given[min(row, len(given) - 1)] if isinstance(given, _PerRow) else given


class ProgramsUnderTest(OpsUnderTest):
    """Inputs become constants of a function that is open until a handle is read."""

    dtype: DType = "f16"

    def make(self, weights: WeightSource, *, max_tokens: int) -> Any:
        self._function = Function({"nothing": mb.placeholder((1,), dtype=types.fp16)}, opset_version=TARGET)
        self._function.__enter__()
        return RowByRow(weights, max_tokens)

    def to_handle(self, array: npt.NDArray[Any], kind: str) -> Any:
        if kind == "ids":
            self._length = array.shape[1]
            return _PerRow(array)
        if kind == "counts":
            return _PerRow(self._counts(int(count)) for count in array)
        channels_first = np.moveaxis(array, -1, -2) if kind == "heads" else np.swapaxes(array, 1, 2)[:, :, None, :]
        return _PerRow(constant(row[None]) for row in channels_first)

    def _counts(self, count: int) -> RowCounts:
        made = count_inputs(count, self._length)
        return RowCounts(*(mb.const(val=made[name]) for name in (VISIBLE, SHARE, LAST)))

    def from_handle(self, handle: Any, kind: str) -> npt.NDArray[Any]:
        if kind == "weight":
            return np.asarray(handle.values)
        rows = handle if isinstance(handle, _PerRow) else [handle]
        self._function.set_outputs([mb.identity(x=row, name=f"row_{place}") for place, row in enumerate(rows)])
        found = interpreted.run(self._function, {"nothing": np.zeros(1, np.float16)})
        values = np.concatenate([found[f"row_{place}"] for place in range(len(rows))]).astype(np.float32)
        if kind == "vectors":
            return values
        return np.moveaxis(values, -1, -2) if kind == "heads" else np.swapaxes(values[:, :, 0, :], 1, 2)

    def new_cache(self) -> object:
        return object()

    def close(self) -> None:
        self._function.__exit__(None, None, None)


@pytest.mark.parametrize("case", [case for case in OP_CASES if str(case) not in REFUSED], ids=str)
def test_operation_agrees_with_the_reference(case: OpCase) -> None:
    subject = ProgramsUnderTest()
    try:
        check_op(subject, case)
    finally:
        subject.close()


@pytest.mark.parametrize("case", [case for case in OP_CASES if str(case) in REFUSED], ids=str)
def test_what_a_fixed_shape_cannot_do_is_refused(case: OpCase) -> None:
    subject = ProgramsUnderTest()
    try:
        with pytest.raises(OpsMismatch, match="ValueError"):
            check_op(subject, case)
    finally:
        subject.close()
