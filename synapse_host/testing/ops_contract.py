"""The contract every backend's tensor operations are tested against, operation by operation.

A plugin gives an adapter for its operations and runs every case::

    @pytest.mark.parametrize("case", OP_CASES, ids=str)
    def test_op(case: OpCase) -> None:
        check_op(MyOpsUnderTest(), case)

A case runs once on the numpy reference and once on the adapter, with the same seeded inputs already rounded to the
adapter's dtype. The difference may be no more than ``ops.tolerances`` allows. Failures begin with the operation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.case_bench import HandleKind, Measured, OpBench, OpCase, OpsUnderTest
from synapse_host.ops.op_cases import OP_CASES, ReferenceUnderTest
from synapse_host.ops.tolerances import op_bound

__all__ = [
    "OP_CASES",
    "HandleKind",
    "OpCase",
    "OpsMismatch",
    "OpsUnderTest",
    "ReferenceUnderTest",
    "check_op",
]


class OpsMismatch(AssertionError):
    """An implementation differs from the reference; the message begins with the operation."""


def check_op(subject: OpsUnderTest, case: OpCase) -> None:
    """Run ``case`` on the reference and on ``subject``; raises ``OpsMismatch`` where they differ too much."""
    expected = case.run(OpBench(ReferenceUnderTest(subject.dtype), case))
    try:
        found = case.run(OpBench(subject, case))
    except OpsMismatch:
        raise
    except Exception as error:
        raise OpsMismatch(f"{case}: raised {type(error).__name__}: {error}") from error
    if len(found) != len(expected):
        raise OpsMismatch(f"{case}: {len(found)} results, the reference gives {len(expected)}")
    for wanted, got in zip(expected, found, strict=True):
        _compare(case, subject.dtype, wanted, got.values)


def _compare(case: OpCase, dtype: DType, wanted: Measured, got: npt.NDArray[Any]) -> None:
    if got.shape != wanted.values.shape:
        raise OpsMismatch(f"{case}: {wanted.what} has shape {got.shape}, the reference gives {wanted.values.shape}")
    if not np.isfinite(got).all():
        raise OpsMismatch(f"{case}: {wanted.what} has values that are not finite")
    error = np.abs(got.astype(np.float64) - wanted.values.astype(np.float64))
    if wanted.valid is not None:
        error = np.where(wanted.valid, error, 0.0)
    bound = op_bound(case.op, dtype, reduction=wanted.reduction, magnitude=wanted.magnitude)
    if error.size and error.max() > bound:
        at = np.unravel_index(int(error.argmax()), error.shape)
        raise OpsMismatch(
            f"{case}: {wanted.what} is off by {error.max():.3g} at {tuple(int(i) for i in at)} "
            f"({got[at]!r}, the reference gives {wanted.values[at]!r}); {bound:.3g} is allowed in {dtype}"
        )
