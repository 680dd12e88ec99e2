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
from synapse_host.ops.reference_attention import ReferenceCache
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import OP_NAMES, Cache, Handle, TensorOps
from synapse_host.ops.tolerances import op_bound
from synapse_host.ops.weight_source import WeightSource
from synapse_host.testing.ops_attention_cases import ATTENTION_CASES
from synapse_host.testing.ops_bench import HandleKind, Measured, OpBench, OpCase, OpsUnderTest
from synapse_host.testing.ops_row_cases import ROW_CASES

__all__ = ["OP_CASES", "OpCase", "OpsMismatch", "OpsUnderTest", "ReferenceUnderTest", "check_op"]

#: Every case, in the order of the operations in ``TensorOps``.
OP_CASES: tuple[OpCase, ...] = tuple(
    sorted((*ROW_CASES, *ATTENTION_CASES), key=lambda case: OP_NAMES.index(case.op)),
)


class OpsMismatch(AssertionError):
    """An implementation differs from the reference; the message begins with the operation."""


class ReferenceUnderTest(OpsUnderTest):
    """The reference as an adapter: its handles are the arrays themselves."""

    def __init__(self, dtype: DType = "f32") -> None:
        self.dtype: DType = dtype

    def make(self, weights: WeightSource, *, max_tokens: int) -> TensorOps:
        return ReferenceOps(weights, max_tokens=max_tokens)

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Handle:
        return array

    def from_handle(self, handle: Handle, kind: HandleKind) -> npt.NDArray[Any]:
        return np.asarray(handle)

    def new_cache(self) -> Cache:
        return ReferenceCache()


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
