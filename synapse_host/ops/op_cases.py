"""Every case of the operations contract, and the reference as the implementation they are defined by."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.attention_cases import ATTENTION_CASES
from synapse_host.ops.case_bench import HandleKind, OpCase, OpsUnderTest
from synapse_host.ops.reference_attention import ReferenceCache
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.row_cases import ROW_CASES
from synapse_host.ops.tensor_ops import OP_NAMES, Cache, Handle, TensorOps
from synapse_host.ops.weight_source import WeightSource

#: Every case, in the order of the operations in ``TensorOps``.
OP_CASES: tuple[OpCase, ...] = tuple(
    sorted((*ROW_CASES, *ATTENTION_CASES), key=lambda case: OP_NAMES.index(case.op)),
)


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
