"""Every tensor operation, recorded and compiled alone, against the numpy reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_owned_cpu.evidence import dtypes_of, read_machine
from synapse_owned_cpu.graph_backend import compile_settings
from synapse_owned_cpu.nodes import floats
from synapse_owned_cpu.openvino_ops import OpenVinoOps, RecordedCache
from synapse_owned_cpu.runtime import core, opset, ov

from synapse_host.hookspecs import DType
from synapse_host.ops.dtypes import bf16_bits
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.shape_policy import Regime
from synapse_host.owned_engine.weights import StoredTensor
from synapse_host.testing.ops_contract import OP_CASES, OpCase, OpsUnderTest, check_op

DTYPES = dtypes_of(read_machine().isa)
#: Axes that are dynamic in a recording, by kind of handle.
DYNAMIC = {"rows": (0, 1), "heads": (0, 2), "logits": (0, 1), "ids": (0, 1), "counts": (0,)}


class DrawnWeights:
    """A case's weights as a checkpoint of the lane's own type would hold them."""

    def __init__(self, source: WeightSource, dtype: DType) -> None:
        self.source, self.dtype = source, dtype

    def shaped_entry(self, name: str, shape: Any) -> StoredTensor:
        array = checked_tensor(self.source, name, shape)
        stored, kind = (bf16_bits(array), "BF16") if self.dtype == "bf16" else (array, "F32")
        return StoredTensor(name, kind, array.shape, memoryview(np.ascontiguousarray(stored)).cast("B"))


class OpenVinoUnderTest(OpsUnderTest):
    """Inputs become parameters; reading a handle compiles the recording up to it."""

    def __init__(self, dtype: DType, regime: Regime = "full") -> None:
        self.dtype: DType = dtype
        self.regime: Regime = regime

    def make(self, weights: WeightSource, *, max_tokens: int) -> OpenVinoOps:
        self.parameters: list[Any] = []
        self.inputs: list[npt.NDArray[Any]] = []
        drawn: Any = DrawnWeights(weights, self.dtype)
        self.ops = OpenVinoOps(drawn, max_tokens=max_tokens, regime=self.regime, dtype=self.dtype)
        return self.ops

    def to_handle(self, array: npt.NDArray[Any], kind: str) -> Any:
        shape = [-1 if axis in DYNAMIC[kind] else size for axis, size in enumerate(array.shape)]
        element = ov.Type.i32 if array.dtype == np.int32 else ov.Type.f32
        self.parameters.append(opset.parameter(shape, element))
        self.inputs.append(np.ascontiguousarray(array))
        return self.parameters[-1].output(0)

    def from_handle(self, handle: Any, kind: str) -> npt.NDArray[Any]:
        out = handle if kind == "picks" else floats(handle)
        model = ov.Model([opset.result(out)], self.parameters, "case")
        compiled = core().compile_model(model, "CPU", compile_settings(self.dtype, 1))
        return np.array(compiled(dict(enumerate(self.inputs)))[0])

    def new_cache(self) -> RecordedCache:
        return RecordedCache()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operation_agrees_with_the_reference(case: OpCase, dtype: DType) -> None:
    check_op(OpenVinoUnderTest(dtype), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [case for case in OP_CASES if case.op == "attention"], ids=str)
def test_attention_agrees_with_the_reference_in_the_banded_regime(case: OpCase, dtype: DType) -> None:
    check_op(OpenVinoUnderTest(dtype, "band"), case)
