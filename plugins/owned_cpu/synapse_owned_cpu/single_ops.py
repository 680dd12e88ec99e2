"""Single operations recorded, compiled and run alone, as the operations' contract and the self-check ask for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.hookspecs import DType
from synapse_host.ops.case_bench import HandleKind, OpsUnderTest
from synapse_host.ops.dtypes import bf16_bits
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.shape_policy import Regime
from synapse_host.owned_engine.weights import StoredTensor
from synapse_owned_cpu.graph_backend import compile_settings
from synapse_owned_cpu.nodes import floats
from synapse_owned_cpu.openvino_ops import OpenVinoOps, RecordedCache
from synapse_owned_cpu.runtime import core, opset, ov

#: Axes that are dynamic in a recording, by kind of handle.
_DYNAMIC = {"rows": (0, 1), "heads": (0, 2), "logits": (0, 1), "ids": (0, 1), "counts": (0,)}


class RecordedSingly(OpsUnderTest):
    """Inputs become parameters; reading a handle compiles the recording up to it and runs it."""

    def __init__(self, dtype: DType, threads: int = 1, regime: Regime = "full") -> None:
        self.dtype: DType = dtype
        self._threads = threads
        self._regime: Regime = regime
        self._parameters: list[Any] = []
        self._inputs: list[npt.NDArray[Any]] = []

    def make(self, weights: WeightSource, *, max_tokens: int) -> OpenVinoOps:
        self._parameters, self._inputs = [], []
        drawn: Any = _StoredWeights(weights, self.dtype)
        return OpenVinoOps(drawn, max_tokens=max_tokens, regime=self._regime, dtype=self.dtype)

    def to_handle(self, array: npt.NDArray[Any], kind: HandleKind) -> Any:
        shape = [-1 if axis in _DYNAMIC[kind] else size for axis, size in enumerate(array.shape)]
        element = ov.Type.i32 if array.dtype == np.int32 else ov.Type.f32
        self._parameters.append(opset.parameter(shape, element))
        self._inputs.append(np.ascontiguousarray(array))
        return self._parameters[-1].output(0)

    def from_handle(self, handle: Any, kind: HandleKind) -> npt.NDArray[Any]:
        read = handle if kind == "picks" else floats(handle)
        model = ov.Model([opset.result(read)], self._parameters, "case")
        compiled = core().compile_model(model, "CPU", compile_settings(self.dtype, self._threads))
        return np.array(compiled(dict(enumerate(self._inputs)))[0])

    def new_cache(self) -> RecordedCache:
        return RecordedCache()


class _StoredWeights:
    """A case's weights as a checkpoint of the lane's own type would hold them."""

    def __init__(self, source: WeightSource, dtype: DType) -> None:
        self._source, self._dtype = source, dtype

    def shaped_entry(self, name: str, shape: Any) -> StoredTensor:
        """The tensor, held against ``shape``."""
        array = checked_tensor(self._source, name, shape)
        stored, kind = (bf16_bits(array), "BF16") if self._dtype == "bf16" else (array, "F32")
        return StoredTensor(name, kind, array.shape, np.ascontiguousarray(stored).data.cast("B"))
