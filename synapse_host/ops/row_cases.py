"""Cases of the operations contract on Rows: everything but heads, rotary positions, attention and the cache.

Sizes are odd on purpose: nothing is a multiple of a vector register, and each axis has a size of its own, so that two
axes taken for one another show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.ops.case_bench import Measured, OpBench, OpCase
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, Handle, Rows, TensorOps

B, S, C, V = 3, 7, 13, 29
COUNTS = (7, 1, 4)
EPS = 1e-3


def peak(*arrays: npt.NDArray[Any]) -> float:
    """The product of the largest absolute values."""
    return float(np.prod([np.abs(array).max() for array in arrays]))


def _alone(values: npt.NDArray[Any], what: str = "the result") -> Measured:
    """A result each of whose values is computed by itself."""
    return Measured(values, magnitude=peak(values), what=what)


def _weight(b: OpBench) -> list[Measured]:
    for name, shape in (("w", (C, 5)), ("absent", (5,))):
        _expect_refusal(lambda name=name, shape=shape: b.ops.weight(name, shape), name)  # type: ignore[misc]
    return [Measured(b.read(b.weight("w"), "weight"))]


def _expect_refusal(call: Callable[[], Handle], name: str) -> None:
    """``call`` must raise a ``ValueError`` that names the tensor."""
    try:
        call()
    except ValueError as refusal:
        if name not in str(refusal):
            raise AssertionError(f"the refusal does not name the tensor {name!r}: {refusal}") from refusal
        return
    raise AssertionError(f"a tensor {name!r} of another shape, or absent, was not refused with ValueError")


def _embedding(b: OpBench) -> list[Measured]:
    ids = np.array([[0, V - 1, 3, 3, 28, 7, 1], [11] * S, [5, 4, 3, 2, 1, 0, 0]])
    batch = b.batch(COUNTS, S, ids=ids)
    return [Measured(b.read(b.ops.embedding(batch.ids, b.weight("w"))))]


def _positions(start: int, first: int) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        batch = b.batch(COUNTS, S, start=start)
        return [Measured(b.read(b.ops.positions(batch, b.weight("w"), first)))]

    return run


def _table_row(index: int) -> Callable[[OpBench], list[Measured]]:
    return lambda b: [Measured(b.read(b.ops.table_row(b.weight("w"), index)))]


def _linear(act: Activation | None, bias: bool) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x = b.draw(B, S, C)
        y = b.ops.linear(b.rows(x), b.weight("w"), b.weight("b") if bias else None, act)
        size = peak(x, b.weights.tensor("w")) + peak(b.weights.tensor("b"))
        return [Measured(b.read(y), magnitude=size, reduction=C)]

    return run


def _binary(op: str, left: Sequence[int], right: Sequence[int]) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        enter = b.rows if len(left) == 3 else b.heads
        y = getattr(b.ops, op)(enter(b.draw(*left)), enter(b.draw(*right)))
        return [_alone(b.read(y, "rows" if len(left) == 3 else "heads"))]

    return run


def _layer_norm(bias: bool, scale: float = 2.0) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x = b.draw(B, S, C, scale=scale) + np.float32(scale / 4)
        return [_alone(b.read(b.ops.layer_norm(b.rows(x), b.weight("w"), b.weight("b") if bias else None, EPS)))]

    return run


def _rms_norm(scale: float) -> Callable[[OpBench], list[Measured]]:
    return lambda b: [_alone(b.read(b.ops.rms_norm(b.rows(b.draw(B, S, C, scale=scale)), b.weight("w"), EPS)))]


def _rms_norm_heads(b: OpBench) -> list[Measured]:
    return [_alone(b.read(b.ops.rms_norm(b.heads(b.draw(B, 2, S, C)), b.weight("w"), EPS), "heads"))]


def _add_norm(op: str, scale: float = 1.0) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x, r = b.draw(B, S, C, scale=scale), b.draw(B, S, C, scale=scale)
        parts = (b.weight("w"), b.weight("b"), EPS) if op == "add_layer_norm" else (b.weight("w"), EPS)
        total, normed = getattr(b.ops, op)(b.rows(x), b.rows(r), *parts)
        return [_alone(b.read(total), "the sum"), _alone(b.read(normed), "the norm")]

    return run


def _unary(call: Callable[[TensorOps, Rows], Rows], scale: float = 2.0) -> Callable[[OpBench], list[Measured]]:
    return lambda b: [_alone(b.read(call(b.ops, b.rows(b.draw(B, S, C, scale=scale)))))]


def _gelu(kind: GeluKind) -> Callable[[OpBench], list[Measured]]:
    return _unary(lambda ops, x: ops.gelu(x, kind))


def _geglu(kind: GeluKind) -> Callable[[OpBench], list[Measured]]:
    return lambda b: [_alone(b.read(b.ops.geglu(b.rows(b.draw(B, S, 2 * C, scale=2.0)), kind)))]


def _swiglu(b: OpBench) -> list[Measured]:
    return [_alone(b.read(b.ops.swiglu(b.rows(b.draw(B, S, C, scale=2.0)), b.rows(b.draw(B, S, C)))))]


def _split(b: OpBench) -> list[Measured]:
    parts = b.ops.split(b.rows(b.draw(B, S, C)), (2, 1, 10))
    return [Measured(b.read(part), what=f"piece {i}") for i, part in enumerate(parts)]


def _picked(call: Callable[[TensorOps, Rows, Batch], Rows], length: int) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x = b.draw(B, length, C)
        y = call(b.ops, b.rows(x), b.batch((length, 1, length // 2 + 1), length))
        return [Measured(b.read(y), magnitude=peak(x))]

    return run


def _l2_normalize(scale: float) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x = b.draw(B, 1, C, scale=scale)
        x[1] = 0.0
        return [_alone(b.read(b.ops.l2_normalize(b.rows(x))))]

    return run


def _logits(rows: Sequence[int] | None) -> Callable[[OpBench], list[Measured]]:
    def run(b: OpBench) -> list[Measured]:
        x = b.draw(B, S, C)
        y = b.ops.logits(b.rows(x), b.weight("w"), rows)
        return [Measured(b.read(y, "logits"), magnitude=peak(x, b.weights.tensor("w")), reduction=C)]

    return run


def _argmax(b: OpBench) -> list[Measured]:
    scores = b.draw(B, S, V)
    scores[0, 0] = 1.0
    scores[1, 2, [4, 9, 28]] = 50.0
    scores[2, :, 0] = scores[2].max() + 1.0
    return [Measured(b.read(b.ops.argmax(b.logits(scores)), "picks"))]


def _result(b: OpBench) -> list[Measured]:
    return [Measured(b.read(b.ops.result(b.rows(b.draw(B, 1, C))), "vectors"))]


_LINEAR = {"w": (V, C), "b": (V,)}
_NORM = {"w": (C,), "b": (C,)}
_ROWS = (B, S, C)
#: Rows so small that epsilon, not their variance, decides the size of what is normalised.
_SMALL = 0.01
_ACTIVATIONS: tuple[Activation, ...] = ("gelu", "gelu_tanh", "silu", "tanh", "relu")

ROW_CASES: tuple[OpCase, ...] = (
    OpCase("weight", "values, another shape, an absent tensor", _weight, {"w": (5, C)}),
    OpCase("embedding", "first, last and repeated ids", _embedding, {"w": (V, C)}),
    OpCase("positions", "from the first row", _positions(0, 0), {"w": (V, C)}),
    OpCase("positions", "after 5 cached tokens", _positions(5, 0), {"w": (V, C)}),
    OpCase("positions", "of a table whose first two rows are not used", _positions(3, 2), {"w": (V, C)}),
    OpCase("table_row", "first of two", _table_row(0), {"w": (2, C)}),
    OpCase("table_row", "last of two", _table_row(1), {"w": (2, C)}),
    OpCase("linear", "without bias", _linear(None, bias=False), _LINEAR),
    OpCase("linear", "with bias", _linear(None, bias=True), _LINEAR),
    *(OpCase("linear", f"then {act}", _linear(act, bias=True), _LINEAR) for act in _ACTIVATIONS),
    *(
        OpCase(op, label, _binary(op, left, right))
        for op in ("add", "mul")
        for label, left, right in (
            ("equal rows", _ROWS, _ROWS),
            ("one position stretched", _ROWS, (B, 1, C)),
            ("one row stretched, on the left", (1, S, C), _ROWS),
            ("row and position stretched", _ROWS, (1, 1, C)),
            ("each side stretched once", (B, 1, C), (1, S, C)),
            ("heads, one row stretched", (B, 2, S, 5), (1, 2, S, 5)),
        )
    ),
    OpCase("layer_norm", "with bias", _layer_norm(bias=True), _NORM),
    OpCase("layer_norm", "without bias", _layer_norm(bias=False), _NORM),
    OpCase("layer_norm", "rows below epsilon", _layer_norm(bias=False, scale=_SMALL), _NORM),
    OpCase("rms_norm", "rows", _rms_norm(3.0), _NORM),
    OpCase("rms_norm", "rows below epsilon", _rms_norm(_SMALL), _NORM),
    OpCase("rms_norm", "heads", _rms_norm_heads, _NORM),
    OpCase("add_layer_norm", "sum and norm", _add_norm("add_layer_norm"), _NORM),
    OpCase("add_layer_norm", "rows below epsilon", _add_norm("add_layer_norm", _SMALL), _NORM),
    OpCase("add_rms_norm", "sum and norm", _add_norm("add_rms_norm"), _NORM),
    OpCase("add_rms_norm", "rows below epsilon", _add_norm("add_rms_norm", _SMALL), _NORM),
    OpCase("gelu", "exact", _gelu("erf")),
    OpCase("gelu", "tanh form", _gelu("tanh")),
    OpCase("silu", "small", _unary(lambda ops, x: ops.silu(x))),
    OpCase("silu", "far from zero", _unary(lambda ops, x: ops.silu(x), scale=60.0)),
    OpCase("tanh", "small and saturated", _unary(lambda ops, x: ops.tanh(x))),
    OpCase("relu", "both signs", _unary(lambda ops, x: ops.relu(x))),
    OpCase("geglu", "exact", _geglu("erf")),
    OpCase("geglu", "tanh form", _geglu("tanh")),
    OpCase("swiglu", "gate and up", _swiglu),
    OpCase("split", "three unequal pieces", _split),
    OpCase("first_row", "ragged", _picked(lambda ops, x, batch: ops.first_row(x, batch), S)),
    OpCase("last_row", "ragged", _picked(lambda ops, x, batch: ops.last_row(x, batch), S)),
    OpCase("mean_rows", "ragged", _picked(lambda ops, x, batch: ops.mean_rows(x, batch), S)),
    OpCase("mean_rows", "long", _picked(lambda ops, x, batch: ops.mean_rows(x, batch), 301)),
    OpCase("l2_normalize", "a row of zeros stays zero", _l2_normalize(1.0)),
    OpCase("l2_normalize", "small rows", _l2_normalize(0.01)),
    OpCase("logits", "the whole vocabulary", _logits(None), {"w": (V, C)}),
    OpCase("logits", "two named rows, not in order", _logits((17, 4)), {"w": (V, C)}),
    OpCase("argmax", "ties go to the lowest index", _argmax),
    OpCase("result", "pooled rows", _result),
)
