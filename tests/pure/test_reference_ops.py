"""Each reference operation against a formula written independently, in float64 and mostly one number at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from synapse_host.ops.reference_activations import erf, gelu
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Activation, Batch

Array = npt.NDArray[np.float32]
B, S, C = 3, 5, 7
EPS = 1e-5


class Weights:
    def __init__(self, **tensors: Array) -> None:
        self.tensors = tensors
        self.reads = 0

    def tensor(self, name: str) -> Array:
        self.reads += 1
        return self.tensors[name]


OPS = ReferenceOps(Weights(), max_tokens=600)


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch(*counts: int, length: int = S, start: int = 0) -> Batch:
    return Batch(np.zeros((len(counts), length), np.int32), np.array(counts, np.int32), start)


def close(found: Array, wanted: npt.ArrayLike, ulps: float = 1.0) -> None:
    expected = np.asarray(wanted, dtype=np.float64)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= ulps * 2.0**-24 * max(1.0, np.abs(expected).max())


def each(function: Callable[[float], float], x: Array) -> npt.NDArray[np.float64]:
    return np.array([function(float(v)) for v in x.ravel()]).reshape(x.shape)


def exact_gelu(v: float) -> float:
    return v * 0.5 * math.erfc(-v / math.sqrt(2.0))


def tanh_gelu(v: float) -> float:
    return 0.5 * v * (1.0 + math.tanh(0.7978845608028654 * (v + 0.044715 * v**3)))


def exact_silu(v: float) -> float:
    return v / (1.0 + math.exp(-v)) if v > -700 else 0.0


FORMULAS: dict[Activation, Callable[[float], float]] = {
    "gelu": exact_gelu,
    "gelu_tanh": tanh_gelu,
    "silu": exact_silu,
    "tanh": math.tanh,
    "relu": lambda v: max(v, 0.0),
}


def test_erf_is_accurate_over_the_whole_line() -> None:
    x = np.concatenate([np.linspace(-7.0, 7.0, 20_001), [0.0, -0.0, 1e-300, 5.9999, 6.0, 40.0, -1e9]])
    wanted = np.array([math.erf(v) for v in x])
    assert np.abs(erf(x) - wanted).max() <= 3e-16
    assert math.copysign(1.0, erf(np.array([-0.0]))[0]) == -1.0


def test_weight_is_read_once_and_refused_with_both_shapes() -> None:
    source = Weights(w=draw(1, 4, 3))
    ops = ReferenceOps(source, max_tokens=8)
    assert ops.weight("w", (4, 3)) is ops.weight("w", [4, 3])
    assert source.reads == 1
    with pytest.raises(ValueError, match=r"'w' has shape \(4, 3\) .* \(3, 4\)"):
        ops.weight("w", (3, 4))
    with pytest.raises(ValueError, match=r"no tensor 'gone' .*\(2,\)"):
        ops.weight("gone", (2,))


def test_embedding_gathers_rows_and_refuses_foreign_ids() -> None:
    table = draw(2, 11, C)
    found = OPS.embedding(np.array([[0, 10], [3, 3]], np.int32), table)
    close(found, [[table[0], table[10]], [table[3], table[3]]])
    for foreign in (11, -1):
        with pytest.raises(ValueError, match=rf"token id {foreign} .* 11"):
            OPS.embedding(np.array([[0, foreign]], np.int32), table)


def test_positions_start_after_the_cache_and_end_with_the_table() -> None:
    table = draw(3, 12, C)
    close(OPS.positions(batch(5, 5), table), table[None, :5])
    close(OPS.positions(batch(5, 5, start=4), table, 2), table[None, 6:11])
    with pytest.raises(ValueError, match=r"position 12 .* 12"):
        OPS.positions(batch(5, 5, start=6), table, 2)


def test_table_row() -> None:
    table = draw(4, 2, C)
    close(OPS.table_row(table, 1), table[None, None, 1])
    with pytest.raises(ValueError, match=r"row 2 .* 2 rows"):
        OPS.table_row(table, 2)


@pytest.mark.parametrize("act", [None, *FORMULAS])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(act: Activation | None, bias: bool) -> None:
    x, w, b = draw(5, B, S, C), draw(6, 4, C), draw(7, 4)
    wanted = np.zeros((B, S, 4))
    for i, j, o in np.ndindex(B, S, 4):
        total = math.fsum(float(x[i, j, c]) * float(w[o, c]) for c in range(C)) + (float(b[o]) if bias else 0.0)
        wanted[i, j, o] = total if act is None else FORMULAS[act](total)
    close(OPS.linear(x, w, b if bias else None, act), wanted)


def test_linear_refuses_a_weight_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"linear: weight \(4, 6\) .* 7"):
        OPS.linear(draw(5, B, S, C), draw(6, 4, 6))
    with pytest.raises(ValueError, match="linear: a vector of 4"):
        OPS.linear(draw(5, B, S, C), draw(6, 4, C), draw(7, 5))
    with pytest.raises(ValueError, match="'swish'"):
        OPS.linear(draw(5, B, S, C), draw(6, 4, C), None, "swish")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shapes",
    [((B, S, C), (B, S, C)), ((B, S, C), (1, S, C)), ((B, 1, C), (1, S, C)), ((B, 2, S, C), (1, 2, 1, C))],
)
def test_add_and_mul_stretch_rows_and_positions(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = draw(8, *shapes[0]), draw(9, *shapes[1])
    close(OPS.add(a, b), a.astype(np.float64) + b.astype(np.float64))
    close(OPS.mul(a, b), a.astype(np.float64) * b.astype(np.float64))


@pytest.mark.parametrize("shape", [(B, S, 1), (B, 2, C), (2, S, C), (S, C), (B, 1, S, C)])
def test_add_and_mul_stretch_nothing_else(shape: tuple[int, ...]) -> None:
    for op in (OPS.add, OPS.mul):
        with pytest.raises(ValueError, match=op.__name__):
            op(draw(8, B, S, C), draw(9, *shape))
    with pytest.raises(ValueError, match="axis 1"):
        OPS.add(draw(8, B, 2, S, C), draw(9, B, 1, S, C))


def layer_normed(x: Array, w: Array, b: Array | None) -> npt.NDArray[np.float64]:
    wanted = np.zeros(x.shape)
    for i, j in np.ndindex(x.shape[:2]):
        row = [float(v) for v in x[i, j]]
        mean = math.fsum(row) / len(row)
        variance = math.fsum((v - mean) ** 2 for v in row) / len(row)
        for c, v in enumerate(row):
            wanted[i, j, c] = (v - mean) / math.sqrt(variance + EPS) * w[c] + (0.0 if b is None else b[c])
    return wanted


def rms_normed(x: Array, w: Array) -> npt.NDArray[np.float64]:
    flat = x.reshape(-1, x.shape[-1])
    rows = [[float(v) for v in row] for row in flat]
    wanted = [
        [v / math.sqrt(math.fsum(u * u for u in row) / len(row) + EPS) * w[c] for c, v in enumerate(row)]
        for row in rows
    ]
    return np.array(wanted).reshape(x.shape)


def test_layer_norm_with_and_without_bias() -> None:
    x, w, b = draw(10, B, S, C) * 3 + 2, draw(11, C), draw(12, C)
    close(OPS.layer_norm(x, w, b, EPS), layer_normed(x, w, b), 2)
    close(OPS.layer_norm(x, w, None, EPS), layer_normed(x, w, None), 2)


def test_layer_norm_keeps_its_precision_far_from_zero() -> None:
    x, w = (draw(10, B, S, C) + np.float32(4096)), np.ones(C, np.float32)
    close(OPS.layer_norm(x, w, None, EPS), layer_normed(x, w, None), 2)


def test_rms_norm_over_features_and_over_a_head() -> None:
    rows, heads, w = draw(13, B, S, C), draw(14, B, 2, S, C), draw(15, C)
    close(OPS.rms_norm(rows, w, EPS), rms_normed(rows, w), 2)
    close(OPS.rms_norm(heads, w, EPS), rms_normed(heads, w), 2)


def test_norms_of_a_sum_round_the_sum_once() -> None:
    x, r, w, b = draw(16, B, S, C), draw(17, B, S, C), draw(18, C), draw(19, C)
    total, normed = OPS.add_layer_norm(x, r, w, b, EPS)
    close(total, x.astype(np.float64) + r)
    close(normed, layer_normed(total, w, b), 2)
    total, normed = OPS.add_rms_norm(x, r, w, EPS)
    close(total, x.astype(np.float64) + r)
    close(normed, rms_normed(total, w), 2)
    with pytest.raises(ValueError, match=r"add_rms_norm: .* must be equal"):
        OPS.add_rms_norm(x, r[:1], w, EPS)


def test_activations_over_a_wide_range() -> None:
    x = np.concatenate([np.linspace(-12, 12, 997), [-3e4, -800.0, 0.0, 3e4]]).astype(np.float32).reshape(1, 1, -1)
    near = x[..., :997]
    for found, formula in (
        (OPS.gelu(near, "erf"), exact_gelu),
        (OPS.gelu(near, "tanh"), tanh_gelu),
        (OPS.silu(near), exact_silu),
        (OPS.tanh(near), math.tanh),
        (OPS.relu(near), FORMULAS["relu"]),
    ):
        close(found, each(formula, near))
    far = x[..., 997:]
    close(OPS.silu(far), [[[0.0, 0.0, 0.0, 3e4]]])
    close(OPS.gelu(far, "erf"), [[[0.0, 0.0, 0.0, 3e4]]])


def test_gated_units_gate_with_the_first_half() -> None:
    x = draw(20, B, S, 2 * C)
    for kind, formula in (("erf", exact_gelu), ("tanh", tanh_gelu)):
        close(OPS.geglu(x, kind), each(formula, x[..., :C]) * x[..., C:])  # type: ignore[arg-type]
    close(OPS.swiglu(x[..., :C], x[..., C:]), each(exact_silu, x[..., :C]) * x[..., C:])
    with pytest.raises(ValueError, match="geglu: 7 features"):
        OPS.geglu(x[..., :C], "erf")


def test_split_cuts_features() -> None:
    x = draw(21, B, S, C)
    first, second, third = OPS.split(x, (1, 4, 2))
    close(first, x[..., :1])
    close(second, x[..., 1:5])
    close(third, x[..., 5:])
    with pytest.raises(ValueError, match=r"split: sizes \(1, 4\) .* 7"):
        OPS.split(x, (1, 4))


def test_heads_and_merge_heads_undo_one_another() -> None:
    x = draw(22, B, S, 12)
    found = OPS.heads(x, 3)
    for n in range(3):
        close(found[:, n], x[..., 4 * n : 4 * n + 4])
    close(OPS.merge_heads(found), x)
    with pytest.raises(ValueError, match=r"heads: 12 features .* 5 heads"):
        OPS.heads(x, 5)


def test_rows_are_picked_and_averaged_by_count() -> None:
    x, counts = draw(32, B, S, C), (5, 1, 3)
    given = batch(*counts)
    close(OPS.first_row(x, given), x[:, :1])
    close(OPS.last_row(x, given), [[x[b, n - 1]] for b, n in enumerate(counts)])
    means = [[[math.fsum(map(float, x[b, :n, c])) / n for c in range(C)]] for b, n in enumerate(counts)]
    close(OPS.mean_rows(x, given), means)


def test_mean_rows_never_touches_padding() -> None:
    x = draw(32, B, S, C)
    x[1, 1:] = np.inf
    assert np.isfinite(OPS.mean_rows(x, batch(5, 1, 3))).all()


def test_l2_normalize_leaves_zero_rows_zero() -> None:
    x = draw(33, B, 1, C) * np.float32(1e-3)
    x[1] = 0.0
    norms = [math.sqrt(math.fsum(float(v) ** 2 for v in row)) or 1.0 for row in x[:, 0]]
    close(OPS.l2_normalize(x), [[[float(v) / n for v in row]] for row, n in zip(x[:, 0], norms, strict=True)])
    huge = np.full((1, 1, 4), 1e30, np.float32)
    close(OPS.l2_normalize(huge), np.full((1, 1, 4), 0.5))


def test_logits_of_all_and_of_named_rows() -> None:
    x, w = draw(34, B, S, C), draw(35, 9000, C)
    wanted = np.einsum("bsc,vc->bsv", x.astype(np.float64), w.astype(np.float64))
    close(OPS.logits(x, w), wanted)
    close(OPS.logits(x, w, [8999, 2]), wanted[..., [8999, 2]])
    with pytest.raises(ValueError, match="row 9000"):
        OPS.logits(x, w, [9000])


def test_argmax_takes_the_lowest_id_on_ties() -> None:
    scores = np.array([[[0, 3, 1, 3], [2, 2, 2, 2], [-5, -4, -3, -3]]], np.float32)
    found = OPS.argmax(scores)
    assert found.dtype == np.int32
    assert found.tolist() == [[1, 0, 2]]


def test_result_is_the_pooled_rows_alone() -> None:
    x = draw(36, B, 1, C)
    found = OPS.result(x)
    close(found, x[:, 0])
    assert found.flags.c_contiguous
    with pytest.raises(ValueError, match="result: pooled rows"):
        OPS.result(draw(36, B, 2, C))


def test_erf_and_gelu_carry_not_a_number_and_infinities_through() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0])
    np.testing.assert_array_equal(erf(x), [np.nan, 1.0, -1.0, 0.0])
    assert np.isnan(gelu(np.array([np.nan]), "erf")[0])
