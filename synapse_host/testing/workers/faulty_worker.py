"""A worker whose mathematics holds one planted mistake, for proving that a probe sees it.

``python -m synapse_host.testing.workers.faulty_worker FAULT BACKEND --socket PATH --nonce N``. The mistake is made in
the operations handed to the family, so the same program spoils any owned backend.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from synapse_host.ops.tensor_ops import Batch, TensorOps

#: Counts raised by this make every key visible, as if nobody had masked the padding.
_UNMASKED = 4096
#: What frameworks use for layer norm when nobody says otherwise; BERT says 1e-12.
_COMMON_EPS = 1e-5


class _SpoiledOps:
    """The operations of a backend, one of them wrong."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


class SwappedPooling(_SpoiledOps):
    """The first row in place of the mean."""

    def mean_rows(self, x: Any, batch: Batch) -> Any:
        return self._ops.first_row(x, batch)


class DroppedMask(_SpoiledOps):
    """Padding takes part in attention."""

    def attention(self, q: Any, k: Any, v: Any, batch: Batch, **how: Any) -> Any:
        return self._ops.attention(q, k, v, replace(batch, counts=_raised(batch.counts)), **how)


def _raised(counts: Any) -> Any:
    """``counts`` plus a lot, for arrays and for nodes of an OpenVINO graph, which know no operators."""
    if hasattr(counts, "dtype"):
        return counts + _UNMASKED
    opset = importlib.import_module("openvino.opset13")
    return opset.add(counts, opset.constant(_UNMASKED, dtype="int32")).output(0)


class TransposedQk(_SpoiledOps):
    """Queries and keys exchanged."""

    def attention(self, q: Any, k: Any, v: Any, batch: Batch, **how: Any) -> Any:
        return self._ops.attention(k, q, v, batch, **how)


class WrongEps(_SpoiledOps):
    """Another epsilon in every layer norm."""

    def layer_norm(self, x: Any, w: Any, b: Any, eps: float) -> Any:
        return self._ops.layer_norm(x, w, b, _COMMON_EPS)

    def add_layer_norm(self, x: Any, r: Any, w: Any, b: Any, eps: float) -> Any:
        return self._ops.add_layer_norm(x, r, w, b, _COMMON_EPS)


class TanhForErf(_SpoiledOps):
    """The tanh form of GELU in place of the exact one."""

    def linear(self, x: Any, w: Any, b: Any = None, act: Any = None) -> Any:
        return self._ops.linear(x, w, b, "gelu_tanh" if act == "gelu" else act)


class ShiftedPositions(_SpoiledOps):
    """Positions counted from one."""

    def positions(self, batch: Batch, table: Any, first: int = 0) -> Any:
        return self._ops.positions(batch, table, first + 1)


class F16Overflow(_SpoiledOps):
    """Products kept in half precision with nothing done about its range; for backends whose handles are arrays."""

    def linear(self, x: Any, w: Any, b: Any = None, act: Any = None) -> Any:
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):
            return self._ops.linear(x, w, b, act).astype(np.float16).astype(np.float32)


class PerturbedLayer(_SpoiledOps):
    """One matrix of one layer off by one percent; for backends whose handles are arrays."""

    def weight(self, name: str, shape: Any) -> Any:
        handle = self._ops.weight(name, shape)
        return handle * 1.01 if name == "encoder.layer.1.output.dense.weight" else handle


class IgnoredKinds(_SpoiledOps):
    """The two texts of a pair taken for one."""

    def embedding(self, ids: Any, table: Any) -> Any:
        if _rows(table) == 2:
            return self._ops.table_row(table, 0)
        return self._ops.embedding(ids, table)


class LinearPooler(_SpoiledOps):
    """No tanh in the head of a reranker."""

    def linear(self, x: Any, w: Any, b: Any = None, act: Any = None) -> Any:
        return self._ops.linear(x, w, b, None if act == "tanh" else act)


def _rows(table: Any) -> int:
    """Rows of a weight, be it an array or a node of an OpenVINO graph."""
    return int(table.shape[0]) if hasattr(table, "dtype") else int(table.get_partial_shape()[0].get_length())


FAULTS: dict[str, Callable[[Any], _SpoiledOps]] = {
    "swapped_pooling": SwappedPooling,
    "dropped_mask": DroppedMask,
    "transposed_qk": TransposedQk,
    "wrong_eps": WrongEps,
    "tanh_for_erf": TanhForErf,
    "shifted_positions": ShiftedPositions,
    "f16_overflow": F16Overflow,
    "perturbed_layer": PerturbedLayer,
}
#: Faults that a reranker alone has.
RERANK_FAULTS: dict[str, Callable[[Any], _SpoiledOps]] = {
    "ignored_kinds": IgnoredKinds,
    "linear_pooler": LinearPooler,
}
#: Faults whose operations need array handles; the others spoil a recording backend as well.
EAGER_ONLY = frozenset({"f16_overflow", "perturbed_layer"})


def plant(fault: str) -> None:
    """Make every owned engine of this process compute with ``fault``; raises ``KeyError`` for an unknown one."""
    from synapse_host.ops.case_bench import OpBench
    from synapse_host.owned_engine.engine import OwnedEngine

    spoil = {**FAULTS, **RERANK_FAULTS}[fault]
    build_soundly = OwnedEngine._build

    def build_spoiled(self: OwnedEngine, *parts: Any) -> Any:
        build = build_soundly(self, *parts)
        return lambda ops, inputs, hidden: build(cast(TensorOps, spoil(ops)), inputs, hidden)

    OwnedEngine._build = build_spoiled  # type: ignore[method-assign,assignment]
    begin_soundly = OpBench.__init__

    def begin_spoiled(self: OpBench, *parts: Any) -> None:
        begin_soundly(self, *parts)
        self.ops = cast(TensorOps, spoil(self.ops))

    OpBench.__init__ = begin_spoiled  # type: ignore[method-assign,assignment]


def main() -> int:
    """Plant the first argument, then be an ordinary worker."""
    from synapse_host.worker.__main__ import main as worker_main

    plant(sys.argv.pop(1))
    return worker_main()


if __name__ == "__main__":
    os._exit(main())
