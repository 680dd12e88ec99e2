"""What each kernel computes, against the reference: the same source run on the CPU, its threads in three orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_owned_cuda.cpu_shim.launching import ORDERS, CpuDevice, LaunchFailed, build_launcher
from synapse_owned_cuda.kernel_table import KERNELS, SOURCE

from synapse_host.hookspecs import DType
from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Batch
from synapse_host.ops.tolerances import op_bound

Array = npt.NDArray[Any]
STORED = {"f32": np.float32, "f16": np.float16}
#: Rows, positions, features: more than one block of each, and no multiple of a warp; moved one by one, and in fours.
B, S, C = 3, 5, 70
WIDTHS = (C, 72)
BLOCK = 64
NONE, GELU, GELU_TANH, SILU, TANH, RELU = range(6)
ACTIVATIONS = {None: NONE, "gelu": GELU, "gelu_tanh": GELU_TANH, "silu": SILU, "tanh": TANH, "relu": RELU}


class NoWeights:
    def tensor(self, name: str) -> Any:
        raise KeyError(name)


OPS = ReferenceOps(NoWeights(), max_tokens=400)


@dataclass
class Bench:
    """Draws inputs already rounded to the type, launches, and keeps what came out beside what should have."""

    device: CpuDevice
    dtype: DType

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(7)

    def draw(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.rng.standard_normal(shape) * scale).astype(STORED[self.dtype])

    def room(self, *shape: int) -> Array:
        """An output that nobody wrote to would show: it is full of NaN."""
        return np.full(shape, np.nan, dtype=STORED[self.dtype])

    def launch(self, kernel: str, grid: tuple[int, ...], *arguments: Any, block: int = BLOCK) -> None:
        self.device.launch(f"{kernel}_{self.dtype}", grid, block, arguments)

    def check(
        self, op: str, found: Array, wanted: Array, *, reduction: int = 1, magnitude: float | None = None
    ) -> None:
        assert found.shape == wanted.shape
        size = magnitude or max(1.0, float(np.abs(wanted).max()))
        error = np.abs(found.astype(np.float64) - wanted).max()
        assert error <= op_bound(op, self.dtype, reduction=reduction, magnitude=size), f"{op} is off by {error}"


def wide(x: Array) -> Array:
    return x.astype(np.float32)


def counts_of(*counts: int) -> Array:
    return np.array(counts, dtype=np.int32)


def embedding(b: Bench) -> None:
    ids = np.array([[0, 10, 3, 3, 7]] * B, dtype=np.int32)
    for c in WIDTHS:
        table, out = b.draw(11, c), b.room(B, S, c)
        b.launch("embedding", (B * S,), out, table, ids, c)
        assert out.tobytes() == table[ids].tobytes()


def by_width(check: Callable[[Bench, int], None]) -> Callable[[Bench], None]:
    def both(b: Bench) -> None:
        for c in WIDTHS:
            check(b, c)

    return both


def combined(b: Bench, c: int) -> None:
    x, row, table = b.draw(B, S, c), b.draw(1, 1, c), b.draw(1, S, c)
    for other, strides in ((x[::-1].copy(), (S * c, c)), (row, (0, 0)), (table, (0, c))):
        for product in (0, 1):
            out = b.room(B, S, c)
            b.launch("combined", (B * S,), out, x, other, S, c, S * c, c, *strides, product)
            wanted = wide(x) * wide(other) if product else wide(x) + wide(other)
            b.check("mul" if product else "add", out, np.broadcast_to(wanted, out.shape))


def layer_norm(b: Bench, c: int = C) -> None:
    x, r, w, bias = b.draw(B, S, c, scale=30.0), b.draw(B, S, c), b.draw(c), b.draw(c)
    for given in (bias, None):
        out = b.room(B, S, c)
        b.launch("layer_norm", (B * S,), out, None, x, None, w, given, c, 1e-5)
        b.check("layer_norm", out, OPS.layer_norm(wide(x), wide(w), None if given is None else wide(given), 1e-5))
    out, total = b.room(B, S, c), b.room(B, S, c)
    b.launch("layer_norm", (B * S,), out, total, x, r, w, bias, c, 1e-5)
    assert total.tobytes() == (wide(x) + wide(r)).astype(total.dtype).tobytes()
    b.check("add_layer_norm", out, OPS.layer_norm(wide(total), wide(w), wide(bias), 1e-5))


def rms_norm(b: Bench, c: int) -> None:
    """Large enough that the squares of float16 values would overflow in it."""
    x, r, w = b.draw(B, S, c, scale=300.0), b.draw(B, S, c), b.draw(c)
    out, total = b.room(B, S, c), b.room(B, S, c)
    b.launch("rms_norm", (B * S,), out, None, x, None, w, c, 1e-6)
    b.check("rms_norm", out, OPS.rms_norm(wide(x), wide(w), 1e-6))
    b.launch("rms_norm", (B * S,), out, total, x, r, w, c, 1e-6, block=128)
    assert total.tobytes() == (wide(x) + wide(r)).astype(total.dtype).tobytes()
    b.check("add_rms_norm", out, OPS.rms_norm(wide(total), wide(w), 1e-6))


def bias_act(b: Bench, c: int) -> None:
    x, bias = b.draw(B, S, c, scale=3.0), b.draw(c)
    for name, act in ACTIVATIONS.items():
        given = None if name is None else bias
        y = x.copy()
        b.launch("bias_act", (B * S,), y, given, c, act)
        summed = wide(x) + (0.0 if given is None else wide(bias))
        kinds = {"gelu": "erf", "gelu_tanh": "tanh"}
        wanted = (
            summed if name is None else OPS.gelu(summed, kinds[name]) if name in kinds else getattr(OPS, name)(summed)
        )
        b.check("gelu", y, wanted)


def gated_halves(b: Bench, c: int) -> None:
    x = b.draw(B, S, 2 * c, scale=2.0)
    for kind, act in (("erf", GELU), ("tanh", GELU_TANH)):
        out = b.room(B, S, c)
        b.launch("gated_halves", (B * S,), out, x, c, act)
        b.check("geglu", out, OPS.geglu(wide(x), kind))


def gated_pair(b: Bench, c: int) -> None:
    gate, up = b.draw(B, S, c, scale=3.0), b.draw(B, S, c)
    out = b.room(B, S, c)
    b.launch("gated_pair", (B * S,), out, gate, up, c, SILU)
    b.check("swiglu", out, OPS.swiglu(wide(gate), wide(up)))


def in_place(h: Array, width: int, offset: int) -> Array:
    """Heads [B, N, S, D] where a product leaves them: in wider rows, beside numbers nobody may read."""
    rows, n, length, d = h.shape
    joined = np.full((rows, length, width), np.nan, dtype=h.dtype)
    joined[..., offset : offset + n * d] = h.swapaxes(1, 2).reshape(rows, length, n * d)
    return joined


def apart(x: Array, n: int) -> Array:
    """[B, S, N * D] as the reference has it."""
    return x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2)


def rotated(b: Bench) -> None:
    """The second of three joined parts: normed, turned, both, and an odd width that can only be normed."""
    for d, turned in ((10, True), (70, True), (7, False)):
        n, width = 9, 3 * 9 * d
        h, w = b.draw(B, n, S, d, scale=3.0), b.draw(d)
        joined, table = in_place(h, width, n * d), OPS.rope_table(1e4, d) if turned else None
        for weight, angles, start in ((w, None, 0), (None, table, 310), (w, table, 0)):
            if weight is None and angles is None:
                continue
            out = b.room(B, S, n * d)
            sizes = (S, n, d, width, n * d, start, 400, 1e-6)
            b.launch("rotated", (B * S,), out, joined, weight, angles, *sizes, block=64)
            wanted = wide(h) if weight is None else OPS.rms_norm(wide(h), wide(weight), 1e-6)
            if angles is not None:
                wanted = OPS.rope(wanted, angles, Batch(np.zeros((B, S), np.int32), counts_of(S, S, S), start))
            b.check("rope", apart(out, n), wanted, magnitude=4.0 * float(np.abs(wanted).max()))


def attention(kernel: str, d: int) -> Callable[[Bench], None]:
    def check(b: Bench) -> None:
        queries = 64 if b.dtype == "f16" else 32
        for n, nk, s, start, causal, window, counts, spare in (
            (2, 2, 7, 0, False, None, (7, 1), 0),
            (4, 2, 37, 0, True, None, (37, 33), 0),
            (1, 1, 70, 0, False, 9, (70, 41), 0),
            (3, 1, 3, 40, True, None, (3, 2), 5),
            (1, 1, 36, 0, True, 0, (36, 2), 0),
            (1, 1, 135, 0, False, None, (135, 130), 0),
        ):
            t, width = start + s, (n + 2 * nk) * d
            q, k, v = b.draw(2, n, s, d), b.draw(2, nk, t, d), b.draw(2, nk, t, d)
            out, valid = b.room(2, s, n * d), counts_of(*counts)
            scale = float(np.float32(1 / np.sqrt(d)))
            # Where a cache is: room for more keys than there are, and nothing beside them.
            keys, values = (np.pad(in_place(each, nk * d, 0), ((0, 0), (0, spare), (0, 0))) for each in (k, v))
            arrays, places = (in_place(q, width, 2 * nk * d), keys, values), (width, 2 * nk * d, nk * d, 0, nk * d, 0)
            sizes = (n, nk, s, t + spare, d, *places, start, scale, int(causal), -1 if window is None else window)
            b.launch(kernel, (-(-s // queries), n, 2), out, *arrays, valid, *sizes, block=128)
            batch = Batch(np.zeros((2, s), dtype=np.int32), valid, start)
            wanted = OPS.attention(wide(q), wide(k), wide(v), batch, scale=scale, causal=causal, window=window)
            assert np.isfinite(out).all()
            seen = (np.arange(s) < valid[:, None])[:, None, :, None]
            found = np.where(seen, apart(out, n), 0)
            b.check("attention", found, np.where(seen, wanted, 0), magnitude=4.0 * np.abs(v).max())

    return check


def one_row(b: Bench) -> None:
    x, counts = b.draw(B, S, C), counts_of(5, 1, 3)
    for last, wanted in ((0, x[:, 0]), (1, x[np.arange(B), counts - 1])):
        out = b.room(B, C)
        b.launch("one_row", (B,), out, x, counts, S, C, last)
        assert out.tobytes() == wanted.tobytes()


def mean_rows(b: Bench) -> None:
    """More positions than a block has warps."""
    x, counts = b.draw(B, 19, C), counts_of(19, 1, 8)
    out = np.full((B, C), np.nan, dtype=np.float32)
    b.launch("mean_rows", (B, 3), out, x, counts, 19, C, block=256)
    b.check("mean_rows", out, OPS.mean_rows(wide(x), Batch(np.zeros((B, 19), np.int32), counts))[:, 0])


def result(b: Bench) -> None:
    x = b.draw(B, C)
    x[1] = 0
    for normalise in (0, 1):
        out = np.full((B, C), np.nan, dtype=np.float32)
        b.launch("result", (B,), out, x, C, normalise)
        wanted = OPS.l2_normalize(wide(x)[:, None])[:, 0] if normalise else wide(x)
        b.check("l2_normalize", out, wanted)


def chosen_logits(b: Bench) -> None:
    x, w, rows = b.draw(B, C), b.draw(40, C), np.array([39, 7], dtype=np.int32)
    out = np.full((B, 2), np.nan, dtype=np.float32)
    b.launch("chosen_logits", (2, B), out, x, w, rows, C)
    size = float(np.abs(x).max() * np.abs(w).max())
    b.check("logits", out, OPS.logits(wide(x)[:, None], wide(w), [39, 7])[:, 0], reduction=C, magnitude=size)


CASES: dict[str, Callable[[Bench], None]] = {
    "embedding": embedding,
    "combined": by_width(combined),
    "layer_norm": by_width(layer_norm),
    "rms_norm": by_width(rms_norm),
    "bias_act": by_width(bias_act),
    "gated_halves": by_width(gated_halves),
    "gated_pair": by_width(gated_pair),
    "rotated": rotated,
    "attention32": attention("attention32", 24),
    "attention64": attention("attention64", 50),
    "attention128": attention("attention128", 72),
    "one_row": one_row,
    "mean_rows": mean_rows,
    "result": result,
    "chosen_logits": chosen_logits,
}


@pytest.fixture
def device(launcher: Path) -> Iterator[CpuDevice]:
    with CpuDevice(launcher) as opened:
        yield opened


def test_every_kernel_has_a_case() -> None:
    assert sorted(CASES) == sorted(KERNELS)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_computes_what_the_reference_does(kernel: str, dtype: DType, order: int, launcher: Path) -> None:
    with CpuDevice(launcher, order) as device:
        CASES[kernel](Bench(device, dtype))


def test_half_precision_is_read_and_rounded_as_numpy_does(device: CpuDevice) -> None:
    bits = np.arange(65_536, dtype=np.uint16).view(np.float16).reshape(64, 1024)
    found = np.empty((64, 1024), dtype=np.float32)
    device.launch("result_f16", (64,), 64, [found, bits, 1024, 0])
    assert np.array_equal(found, bits.astype(np.float32), equal_nan=True)
    x, y = (np.random.default_rng(seed).permutation(bits.reshape(-1)).reshape(64, 1024) for seed in (1, 2))
    out = np.empty_like(x)
    device.launch("combined_f16", (64,), 64, [out, x, y, 1, 1024, 1024, 0, 1024, 0, 1])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (x.astype(np.float32) * y.astype(np.float32)).astype(np.float16)
    assert np.array_equal(out, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("grid", "arguments", "said"),
    [
        (
            (3,),
            [np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32), counts_of(1, 1), 1, 8, 0],
            "heap-buffer-overflow",
        ),
        (
            (2,),
            [np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32), counts_of(1, 1), 1, 8],
            "number of arguments",
        ),
        ((2,), [np.zeros((2, 8), np.float32), 1, counts_of(1, 1), 1, 8, 0], "takes a pointer"),
        (
            (2,),
            [np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32), counts_of(1, 1), 1, 8.0, 0],
            "takes an int",
        ),
    ],
    ids=["a grid too large", "an argument too few", "a number for a pointer", "a float for a size"],
)
def test_a_wrong_launch_is_seen(grid: tuple[int, ...], arguments: list[Any], said: str, device: CpuDevice) -> None:
    with pytest.raises(LaunchFailed, match=said):
        device.launch("one_row_f32", grid, 32, arguments)


def test_a_launch_that_covers_half_the_batch_leaves_the_rest_unwritten(device: CpuDevice) -> None:
    b = Bench(device, "f32")
    x, out = b.draw(4, 1, C), b.room(4, C)
    b.launch("one_row", (2,), out, x, counts_of(1, 1, 1, 1), 1, C, 0)
    assert np.isnan(out[2:]).all()


def test_a_launch_that_was_broken_off_leaves_nothing_for_the_next(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the time limit of a test: the program still answers, and nobody reads."""
    x, out = np.arange(64, dtype=np.float32).reshape(2, 32), np.zeros((2, 32), np.float32)
    device.launch("result_f32", (2,), 32, [out, x, 32, 0])

    def broken_off(self: CpuDevice, request: bytes, size: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()
        raise KeyboardInterrupt

    exchange = CpuDevice._exchange
    monkeypatch.setattr(CpuDevice, "_exchange", broken_off)
    with pytest.raises(KeyboardInterrupt):
        device.launch("result_f32", (2,), 32, [out, x, 32, 0])
    monkeypatch.setattr(CpuDevice, "_exchange", exchange)
    device.launch("result_f32", (2,), 32, [out, 2 * x, 32, 0])
    assert np.array_equal(out, 2 * x)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("dtype", STORED)
def test_attention_hides_no_score_that_is_no_number(dtype: DType, wrong: float, device: CpuDevice) -> None:
    """A query that overflowed scores minus infinity with every key: zeros would be taken for an answer."""
    b = Bench(device, dtype)
    q, k, v = (b.draw(1, 3, 16) for _ in range(3))
    q[0, 1, 4], k[..., 4] = wrong, 1.0
    out = b.room(1, 3, 16)
    b.launch(
        "attention32", (1, 1, 1), out, q, k, v, counts_of(3), 1, 1, 3, 3, 16, *(16, 0) * 3, 0, 0.25, 0, -1, block=128
    )
    assert np.isnan(out[0]).any(axis=-1).tolist() == [False, True, False]


def planted(folder: Path, old: str, new: str) -> Path:
    source = SOURCE.read_text(encoding="utf-8")
    assert source.count(old) >= 1
    path = folder / "kernels.cu"
    path.write_text(source.replace(old, new, 1), encoding="utf-8")
    return build_launcher(folder, path)


def test_a_missing_barrier_shows_in_some_order(tmp_path: Path) -> None:
    """Sums of other warps are read before they are written."""
    program = planted(
        tmp_path, "if (lane == 0) scratch[warp] = x;\n    __syncthreads();", "if (lane == 0) scratch[warp] = x;"
    )
    wrong = []
    for order in ORDERS:
        with CpuDevice(program, order) as device:
            try:
                layer_norm(Bench(device, "f32"))
            except (AssertionError, LaunchFailed):
                wrong.append(order)
    assert wrong


def test_a_barrier_that_not_every_thread_reaches_is_seen(tmp_path: Path) -> None:
    program = planted(tmp_path, "__syncthreads(); /* an earlier", "if (warp) __syncthreads(); /* an earlier")
    with CpuDevice(program) as device, pytest.raises(LaunchFailed, match="a barrier was not reached"):
        layer_norm(Bench(device, "f32"))
