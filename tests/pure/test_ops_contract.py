"""The operations contract passes on the reference, and a fault planted in any operation fails under its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from synapse_host.hookspecs import DType
from synapse_host.ops.dtypes import rounded
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import OP_NAMES, Batch, TensorOps
from synapse_host.ops.tolerances import OP_UNITS, op_bound
from synapse_host.ops.weight_source import WeightSource
from synapse_host.testing.ops_contract import OP_CASES, OpCase, OpsMismatch, ReferenceUnderTest, check_op

DTYPES: tuple[DType, ...] = ("f32", "f16", "bf16")


def test_every_operation_has_a_case_and_a_tolerance() -> None:
    assert {case.op for case in OP_CASES} == set(OP_NAMES) == set(OP_UNITS)
    assert len({str(case) for case in OP_CASES}) == len(OP_CASES)
    assert len(OP_NAMES) == 31


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_the_reference_passes(case: OpCase, dtype: DType) -> None:
    check_op(ReferenceUnderTest(dtype), case)


class Rounding(ReferenceUnderTest):
    """A stand-in for a device of half precision: every value read back has been rounded to its dtype."""

    def from_handle(self, handle: Any, kind: Any) -> Any:
        values = super().from_handle(handle, kind)
        return values if kind in ("picks", "vectors", "logits") else rounded(values, self.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_rounding_to_the_dtype_is_within_tolerance(case: OpCase, dtype: DType) -> None:
    check_op(Rounding(dtype), case)


Call = Callable[..., Any]


def _nudged(call: Call, *args: Any, **kwargs: Any) -> Any:
    """One value of the (last) result is off by a fifth of the largest, and 0.2."""
    made = call(*args, **kwargs)
    last = np.array(made[-1] if isinstance(made, tuple) else made)
    last.flat[last.size // 2] += 1 if last.dtype == np.int32 else 0.2 + 0.2 * float(np.abs(last).max())
    return (*made[:-1], last) if isinstance(made, tuple) else last


def _swapped(call: Call, a: Any, b: Any, *rest: Any, **kwargs: Any) -> Any:
    return call(b, a, *rest, **kwargs)


def _moved(call: Call, x: Any, batch: Batch, *rest: Any, **kwargs: Any) -> Any:
    """The batch starts one position late."""
    return call(x, replace(batch, start=batch.start + 1), *rest, **kwargs)


def _whole_rows(call: Call, x: Any, batch: Batch) -> Any:
    """Counts are ignored."""
    return call(x, replace(batch, counts=np.full_like(batch.counts, x.shape[1])))


#: A mistake that is easy to make, for each operation.
FAULTS: dict[str, Call] = {
    "weight": lambda call, name, shape: np.zeros(shape, np.float32),
    "embedding": lambda call, ids, table: call(np.maximum(ids - 1, 0), table),
    "positions": lambda call, batch, table, first=0: call(replace(batch, start=0), table, first),
    "table_row": lambda call, table, index: call(table, 0),
    "linear": lambda call, x, w, b=None, act=None: call(x, w, b, "gelu_tanh" if act == "gelu" else act),
    "add": lambda call, a, b: call(a, b) + np.float32(1e-5),
    "mul": lambda call, a, b: a + 0 * call(a, b),
    "layer_norm": lambda call, x, w, b, eps: call(x, w, b, 1e-12),
    "rms_norm": lambda call, x, w, eps: call(x - x.mean(-1, keepdims=True), w, eps),
    "add_layer_norm": lambda call, x, r, w, b, eps: (x, call(x, r, w, b, eps)[1]),
    "add_rms_norm": lambda call, x, r, w, eps: call(x, r, w, 2 * eps),
    "gelu": lambda call, x, kind: call(x, "tanh"),
    "silu": lambda call, x: x / (1 + np.exp(np.clip(-1.702 * x, -80, 80))),
    "tanh": lambda call, x: np.clip(x, -1, 1),
    "relu": lambda call, x: np.where(x > 0, x, np.float32(0.01) * x),
    "geglu": lambda call, x, kind: call(np.roll(x, x.shape[-1] // 2, axis=-1), kind),
    "swiglu": _swapped,
    "split": lambda call, x, sizes: call(x[..., ::-1], sizes),
    "heads": lambda call, x, n: x.reshape(*x.shape[:2], -1, n).transpose(0, 3, 1, 2),
    "merge_heads": lambda call, h: h.transpose(0, 2, 3, 1).reshape(h.shape[0], h.shape[2], -1),
    "rope_table": lambda call, theta, d, scaling=None: rounded(call(theta, d, scaling), "bf16"),
    "rope": lambda call, h, table, batch: _moved(lambda x, b: call(x, table, b), h, batch),
    "attention": lambda call, q, k, v, batch, **rule: call(q, k, v, batch, **(rule | {"window": None})),
    "kv_append": lambda call, cache, layer, k, v, batch: call(cache, 0, k, v, batch),
    "first_row": lambda call, x, batch: x[:, 1:2],
    "last_row": _whole_rows,
    "mean_rows": _whole_rows,
    "l2_normalize": lambda call, x: x / (np.linalg.norm(x, axis=-1, keepdims=True) + np.float32(1e-3)),
    "logits": lambda call, x, w, rows=None: call(x, w, rows and sorted(rows)),
    "argmax": lambda call, scores: (scores.shape[-1] - 1 - np.argmax(scores[..., ::-1], -1)).astype(np.int32),
    "result": lambda call, x: call(x)[::-1],
}


class Faulty(ReferenceUnderTest):
    """The reference with one operation replaced."""

    def __init__(self, op: str, fault: Call, dtype: DType = "f32") -> None:
        super().__init__(dtype)
        self.op, self.fault = op, fault

    def make(self, weights: WeightSource, *, max_tokens: int) -> TensorOps:
        ops = ReferenceOps(weights, max_tokens=max_tokens)
        original = getattr(ops, self.op)
        setattr(ops, self.op, lambda *args, **kwargs: self.fault(original, *args, **kwargs))
        return ops


def failures(subject: Faulty) -> list[str]:
    messages = []
    for case in OP_CASES:
        if case.op == subject.op:
            try:
                check_op(subject, case)
            except OpsMismatch as mismatch:
                messages.append(str(mismatch))
    return messages


@pytest.mark.parametrize("op", OP_NAMES)
def test_a_planted_fault_fails_under_the_name_of_its_operation(op: str) -> None:
    messages = failures(Faulty(op, FAULTS[op]))
    assert messages
    assert all(message.startswith(f"{op}: ") for message in messages)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [name for name in OP_NAMES if name not in ("weight", "rope_table")])
def test_one_wrong_value_fails_in_every_dtype(op: str, dtype: DType) -> None:
    assert failures(Faulty(op, _nudged, dtype))


def test_attention_that_forgets_a_rule_is_seen() -> None:
    for rule in ({"causal": False}, {"window": None}):
        assert failures(Faulty("attention", lambda call, *a, rule=rule, **kw: call(*a, **(kw | rule))))
    ignored = lambda call, q, k, v, batch, **kw: call(  # noqa: E731
        q, k, v, replace(batch, counts=np.full_like(batch.counts, k.shape[2])), **kw
    )
    assert failures(Faulty("attention", ignored))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda call, x: call(x)[:1], "has shape"),
        (lambda call, x: np.full_like(x, np.nan), "not finite"),
        (lambda call, x: call(x) + x.missing, "raised AttributeError"),
    ],
)
def test_other_failures_say_what_is_wrong(fault: Call, said: str) -> None:
    (message,) = failures(Faulty("relu", fault))
    assert message.startswith("relu: both signs")
    assert said in message


def test_bounds_follow_the_size_of_what_is_summed() -> None:
    assert op_bound("linear", "f32", reduction=16, magnitude=3.0) == 4 * 2.0**-24 * 4 * 3.0
    assert op_bound("linear", "bf16") == 4 * 2.0**-8
    assert op_bound("split", "bf16", magnitude=1e9) == 0.0
