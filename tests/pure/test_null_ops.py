"""The null operations: a family that keeps the rules is recorded, one that looks inside a handle is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from synapse_host.families import bert
from synapse_host.ops.null_handle import PeekError
from synapse_host.ops.null_ops import NullOps
from synapse_host.ops.tensor_ops import OP_NAMES, Batch, Rows, TensorOps
from synapse_host.testing.models.tiny_models import TINY_BERTS

TINY = TINY_BERTS["two_layers"]
SHAPES = {name: tensor.shape for name, tensor in TINY.tensors().items()}


def config(pooling: str = "mean") -> bert.BertConfig:
    return bert.BertConfig.from_config(TINY.config(), pooling=pooling, normalize=True)


def recorded(ops: NullOps, cfg: bert.BertConfig) -> Any:
    batch = ops.batch()
    x = bert.stem(ops, cfg, batch)
    for i in range(cfg.layers):
        x = bert.block(ops, cfg, i, x, batch)
    return ops.result(bert.head(ops, cfg, x, batch))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_bert_is_recorded_without_a_look_at_any_tensor(pooling: str) -> None:
    ops = NullOps(SHAPES)
    assert ops.shape_of(recorded(ops, config(pooling))) == ("B", TINY.hidden)
    assert ops.weights == SHAPES
    assert ops.calls.count("attention") == TINY.layers


def test_a_checkpoint_of_other_shapes_is_refused_by_name() -> None:
    name = "encoder.layer.1.intermediate.dense.weight"
    with pytest.raises(ValueError, match=name):
        recorded(NullOps(SHAPES | {name: (78, TINY.hidden)}), config())
    with pytest.raises(ValueError, match=f"no tensor '{name}'"):
        recorded(NullOps({k: v for k, v in SHAPES.items() if k != name}), config())


PEEKS: dict[str, Callable[[Any], object]] = {
    "shape": lambda x: x.shape,
    "dtype": lambda x: x.dtype,
    "astype": lambda x: x.astype("f4"),
    "plus": lambda x: x + x,
    "plus on the right": lambda x: 1.0 + x,
    "in-place times": lambda x: x.__imul__(2.0),
    "matmul": lambda x: x @ x,
    "minus": lambda x: -x,
    "compare": lambda x: x > 0,
    "equal": lambda x: x == x,
    "not equal": lambda x: x != 0,
    "index": lambda x: x[:, 0],
    "length": len,
    "iterate": list,
    "truth": bool,
    "to int": int,
    "to float": float,
    "numpy": np.asarray,
    "numpy function": np.exp,
    "contains": lambda x: 3 in x,
    "call": lambda x: x(),
    "unpack": lambda x: (lambda a, b: a)(*x),
}


@pytest.mark.parametrize("peek", PEEKS)
def test_a_family_that_peeks_fails(peek: str) -> None:
    ops = NullOps(SHAPES)

    def peeking_stem(ops: TensorOps, cfg: bert.BertConfig, batch: Batch) -> Rows:
        x = bert.stem(ops, cfg, batch)
        PEEKS[peek](x)
        return x

    with pytest.raises(PeekError, match="opaque"):
        peeking_stem(ops, config(), ops.batch())


def test_a_handle_of_other_operations_is_refused() -> None:
    with pytest.raises(ValueError, match="ndarray is no handle"):
        NullOps().relu(np.zeros((1, 1, 1)))  # type: ignore[arg-type]


R, H = ("B", "S", 6), ("B", 3, "S", 2)
ONE = ("B", 1, 6)

#: Operation, the handles it takes, its other arguments, and the shapes it gives.
SHAPE_RULES: list[tuple[str, list[tuple[Any, ...]], tuple[Any, ...], list[tuple[Any, ...]]]] = [
    ("embedding", [("B", "S"), (9, 6)], (), [R]),
    ("table_row", [(2, 6)], (1,), [(1, 1, 6)]),
    ("linear", [R, (4, 6)], (), [("B", "S", 4)]),
    ("add", [R, (1, "S", 6)], (), [R]),
    ("mul", [("B", 1, 6), (1, "S", 6)], (), [R]),
    ("add", [H, ("B", 3, 1, 2)], (), [H]),
    ("layer_norm", [R, (6,), (6,)], (1e-5,), [R]),
    ("rms_norm", [H, (2,)], (1e-5,), [H]),
    ("add_layer_norm", [R, R, (6,), (6,)], (1e-5,), [R, R]),
    ("add_rms_norm", [R, R, (6,)], (1e-5,), [R, R]),
    ("gelu", [R], ("erf",), [R]),
    ("silu", [R], (), [R]),
    ("tanh", [R], (), [R]),
    ("relu", [R], (), [R]),
    ("geglu", [R], ("tanh",), [("B", "S", 3)]),
    ("swiglu", [R, R], (), [R]),
    ("split", [R], ((1, 5),), [("B", "S", 1), ("B", "S", 5)]),
    ("heads", [R], (3,), [H]),
    ("merge_heads", [H], (), [R]),
    ("l2_normalize", [ONE], (), [ONE]),
    ("logits", [ONE, (9, 6)], (), [("B", 1, 9)]),
    ("logits", [ONE, (9, 6)], ([8, 0],), [("B", 1, 2)]),
    ("argmax", [("B", 1, 9)], (), [("B", 1)]),
    ("result", [ONE], (), [("B", 6)]),
]


@pytest.mark.parametrize(("op", "takes", "others", "gives"), SHAPE_RULES)
def test_shapes_that_come_out(op: str, takes: list[Any], others: tuple[Any, ...], gives: list[Any]) -> None:
    ops = NullOps()
    made = getattr(ops, op)(*(ops.handle(*shape) for shape in takes), *others)
    assert [ops.shape_of(x) for x in (made if isinstance(made, tuple) else (made,))] == gives
    assert ops.calls == [op]


def test_shapes_of_operations_on_a_batch() -> None:
    ops = NullOps()
    batch, rows, heads = ops.batch(), ops.handle(*R), ops.handle(*H)
    keys = ops.handle("B", 1, "T", 2)
    assert ops.shape_of(ops.positions(batch, ops.handle(9, 6), 2)) == (1, "S", 6)
    assert ops.shape_of(ops.rope(heads, ops.rope_table(1e4, 2), batch)) == H
    assert ops.shape_of(ops.attention(heads, keys, keys, batch, scale=1.0)) == H
    assert ops.shape_of(ops.kv_append(None, 0, heads, heads, batch)[0]) == H
    assert ops.shape_of(ops.kv_append({}, 0, heads, heads, batch)[1]) == ("B", 3, "T", 2)
    for pool in (ops.first_row, ops.last_row, ops.mean_rows):
        assert ops.shape_of(pool(rows, batch)) == ONE


#: Operation, handles and other arguments that break one of its rules.
BROKEN_RULES: list[tuple[str, list[tuple[Any, ...]], tuple[Any, ...]]] = [
    ("embedding", [R, (9, 6)], ()),
    ("embedding", [("B", "S"), (9,)], ()),
    ("table_row", [(2, 6)], (2,)),
    ("linear", [R, (6, 4)], ()),
    ("linear", [R, (4, 6), (6,)], ()),
    ("linear", [H, (4, 2)], ()),
    ("add", [R, ("B", "S", 1)], ()),
    ("add", [R, ("B", "T", 6)], ()),
    ("add", [R, (2, "S", 6)], ()),
    ("mul", [H, ("B", 1, "S", 2)], ()),
    ("mul", [R, H], ()),
    ("mul", [R, (6,)], ()),
    ("layer_norm", [R, (5,), (6,)], (1e-5,)),
    ("layer_norm", [R, (6,), (5,)], (1e-5,)),
    ("layer_norm", [H, (2,), (2,)], (1e-5,)),
    ("rms_norm", [H, (6,)], (1e-5,)),
    ("add_layer_norm", [R, (1, "S", 6), (6,), (6,)], (1e-5,)),
    ("add_rms_norm", [R, R, (5,)], (1e-5,)),
    ("gelu", [(6,)], ("erf",)),
    ("silu", [(6,)], ()),
    ("tanh", [("B", 6)], ()),
    ("relu", [("B", 6)], ()),
    ("geglu", [("B", "S", 5)], ("erf",)),
    ("swiglu", [R, ("B", "S", 5)], ()),
    ("split", [R], ((1, 4),)),
    ("split", [R], ((7, -1),)),
    ("heads", [R], (4,)),
    ("heads", [H], (1,)),
    ("merge_heads", [R], ()),
    ("l2_normalize", [H], ()),
    ("logits", [R, (9, 5)], ()),
    ("logits", [R, (9, 6)], ([9],)),
    ("argmax", [H], ()),
    ("result", [R], ()),
]


@pytest.mark.parametrize(("op", "takes", "others"), BROKEN_RULES)
def test_a_broken_shape_rule_names_the_operation(op: str, takes: list[Any], others: tuple[Any, ...]) -> None:
    ops = NullOps()
    with pytest.raises(ValueError, match=rf"^{op}: "):
        getattr(ops, op)(*(ops.handle(*shape) for shape in takes), *others)


def test_broken_rules_of_operations_on_a_batch() -> None:
    ops = NullOps()
    batch, rows, heads, wide = ops.batch(), ops.handle(*R), ops.handle(*H), ops.handle("B", 3, "S", 4)
    two = ops.handle("B", 2, "T", 2)
    for op, call in {
        "positions": lambda: ops.positions(batch, ops.handle(9, 6), 9),
        "rope_table": lambda: ops.rope_table(1e4, 3),
        "rope": lambda: ops.rope(heads, ops.rope_table(1e4, 4), batch),
        "attention": lambda: ops.attention(heads, two, two, batch, scale=1.0),
        "kv_append": lambda: ops.kv_append(None, 0, heads, wide, batch),
        "first_row": lambda: ops.first_row(heads, batch),
        "last_row": lambda: ops.last_row(heads, batch),
        "mean_rows": lambda: ops.mean_rows(heads, batch),
    }.items():
        with pytest.raises(ValueError, match=rf"^{op}: "):
            call()
    with pytest.raises(ValueError, match="attention"):
        ops.attention(heads, wide, wide, batch, scale=1.0)
    with pytest.raises(ValueError, match="attention"):
        ops.attention(rows, heads, heads, batch, scale=1.0)


def test_every_operation_is_covered_here() -> None:
    on_a_batch = {"positions", "rope_table", "rope", "attention", "kv_append", "first_row", "last_row", "mean_rows"}
    assert {op for op, *_ in SHAPE_RULES} | on_a_batch | {"weight"} == set(OP_NAMES)
    assert {op for op, *_ in BROKEN_RULES} | on_a_batch | {"weight"} == set(OP_NAMES)
