"""Which lane holds which number of a tensor-core product, against two tables that know nothing of each other.

One is the rule of NVIDIA's PTX manual, element by element; the other the strides CUTLASS lays the same instructions out
by. The CPU's stand-in for the instructions and the kernels' ways in and out of registers are then held to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_owned_cuda.cpu_shim.launching import ORDERS, CpuDevice, build_launcher
from synapse_owned_cuda.kernel_table import SOURCE

from synapse_host.ops.reference_ops import ReferenceOps
from synapse_host.ops.tensor_ops import Batch

Array = npt.NDArray[Any]
Place = tuple[int, int]
M, N = 16, 8
#: Features the two instructions multiply at once.
DEPTHS = (8, 16)


def manual_place(matrix: str, lane: int, i: int) -> Place:
    """Row and column of element ``i`` of a lane (PTX ISA, matrix fragments of mma.m16n8k8 and m16n8k16 for .f16)."""
    group, thread = lane >> 2, lane % 4
    if matrix == "a":
        row = group if i in (0, 1, 4, 5) else group + 8
        return row, thread * 2 + (i & 1) + (8 if i >= 4 else 0)
    if matrix == "b":
        return thread * 2 + (i & 1) + (8 if i >= 2 else 0), group
    return (group if i < 2 else group + 8), thread * 2 + (i & 1)


#: By matrix and depth: sizes and strides of (lane, element) in a matrix stored by columns, as CUTLASS's CuTe has them
#: in its traits of SM75_16x8x8 and SM80_16x8x16 with float sums of halves.
CUTE: dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]] = {
    ("a", 8): ((4, 8, 2, 2), (32, 1, 16, 8)),
    ("b", 8): ((4, 8, 2), (16, 1, 8)),
    ("a", 16): ((4, 8, 2, 2, 2), (32, 1, 16, 8, 128)),
    ("b", 16): ((4, 8, 2, 2), (16, 1, 8, 64)),
    ("c", 8): ((4, 8, 2, 2), (32, 1, 16, 8)),
    ("c", 16): ((4, 8, 2, 2), (32, 1, 16, 8)),
}
#: Rows of each matrix as CUTLASS stores it; its b is [N, K].
LEADING = {"a": M, "b": N, "c": M}


def cute_place(matrix: str, depth: int, lane: int, i: int) -> Place:
    sizes, strides = CUTE[matrix, depth]
    at, left = 0, lane + 32 * i
    for size, stride in zip(sizes, strides, strict=True):
        at, left = at + left % size * stride, left // size
    near, far = at % LEADING[matrix], at // LEADING[matrix]
    return (far, near) if matrix == "b" else (near, far)


def elements(matrix: str, depth: int) -> int:
    return {"a": M * depth, "b": depth * N, "c": M * N}[matrix] // 32


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("matrix", "abc")
def test_the_manual_and_cutlass_agree_and_every_number_is_held_once(matrix: str, depth: int) -> None:
    held = list(product(range(32), range(elements(matrix, depth))))
    places = [manual_place(matrix, lane, i) for lane, i in held]
    assert places == [cute_place(matrix, depth, lane, i) for lane, i in held]
    shape = {"a": (M, depth), "b": (depth, N), "c": (M, N)}[matrix]
    assert sorted(places) == list(product(*map(range, shape)))


# --- the stand-in for the instructions ---------------------------------------------------------------------------

#: Kernels of one warp that do nothing but multiply what the lanes are given; words are [32, 4] and [32, 2].
PROBES = """
extern "C" __global__ void probe_16(float *c, const int *a, const int *b) {
    int l = threadIdx.x;
    float held[4] = {c[4 * l], c[4 * l + 1], c[4 * l + 2], c[4 * l + 3]};
    MMA_16_8_16(held, a[4 * l], a[4 * l + 1], a[4 * l + 2], a[4 * l + 3], b[2 * l], b[2 * l + 1]);
    for (int i = 0; i < 4; i++) c[4 * l + i] = held[i];
}
extern "C" __global__ void probe_8(float *c, const int *a, const int *b) {
    int l = threadIdx.x;
    float held[4] = {c[4 * l], c[4 * l + 1], c[4 * l + 2], c[4 * l + 3]};
    MMA_16_8_8(held, a[2 * l], a[2 * l + 1], b[l]);
    for (int i = 0; i < 4; i++) c[4 * l + i] = held[i];
}
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """The attention of float16 rows under a name of its own, with one text changed for another."""

    name: str
    old: str = ""
    new: str = ""
    eight: bool = False


#: Ways to take a number from the wrong place, each of which a device would compute without a word.
FAULTS = (
    Variant("queries_rows", "part % 2 * 8, s - 1", "part / 2 * 8, s - 1"),
    Variant("queries_features", "step * 16 + part / 2 * 8 + pair", "step * 16 + part % 2 * 8 + pair"),
    Variant("queries_order", "queries[step][part] = joined(low, high)", "queries[step][part] = joined(high, low)"),
    Variant("keys_far", "key[0], key[4])", "key[0], key[8])"),
    Variant("keys_swapped", "key[0], key[4])", "key[4], key[0])"),
    Variant("keys_column", "(keys + (column * 8 + group) * PITCH", "(keys + (column * 8 + pair) * PITCH"),
    Variant("values_far", "joined(value[8 * PITCH], value[9 * PITCH])", "joined(value[9 * PITCH], value[8 * PITCH])"),
    Variant("values_row", "(step * 16 + pair) * PITCH + column * 8 + group", "(step * 16 + group) * PITCH + column * 8 + pair"),  # noqa: E501
    Variant("weights_swapped", "halves(left[2], left[3]), halves(right[0], right[1])", "halves(right[0], right[1]), halves(left[2], left[3])"),  # noqa: E501
    Variant("sums_rows", "int to = query + part / 2 * 8", "int to = query + part % 2 * 8"),
    Variant("scores_rows", "query + part / 2 * 8, place", "query + part % 2 * 8, place"),
    Variant("turing_halves", "MMA_16_8_8(c, a[0], a[1], b0)", "MMA_16_8_8(c, a[0], a[2], b0)", eight=True),
    Variant("turing_far", "MMA_16_8_8(c, a[2], a[3], b1)", "MMA_16_8_8(c, a[2], a[3], b0)", eight=True),
)  # fmt: skip
AMPERE, TURING = Variant("ampere"), Variant("turing", eight=True)


def source_of(variants: tuple[Variant, ...]) -> str:
    """Attention alone, once for each variant, and the probes."""
    text = SOURCE.read_text(encoding="utf-8")
    upper = text[: text.index("/* --- ways out")]
    entry = text[text.index("#define ATTENTION(") : text.index("ATTENTION(attention32_f32")]
    made = []
    for variant in variants:
        assert not variant.old or upper.count(variant.old) == 1, variant
        define = "#define EIGHT_AT_ONCE\n" if variant.eight else "#undef EIGHT_AT_ONCE\n"
        body = upper.replace(variant.old, variant.new) if variant.old else upper
        made.append(f"{define}namespace {variant.name}_ {{\n{body}{entry}ATTENTION({variant.name}, Half, 32, 64)\n}}\n")
        made.append(f"using {variant.name}_::{variant.name};\n")
    return "".join(made) + PROBES


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuDevice]:
    folder = tmp_path_factory.mktemp("fragments")
    variants = (AMPERE, TURING, *FAULTS)
    source = folder / "variants.cu"
    source.write_text(source_of(variants), encoding="utf-8")
    names = ("probe_16", "probe_8", *(variant.name for variant in variants))
    with CpuDevice(build_launcher(folder, source, names, "-O0"), ORDERS[-1]) as opened:
        yield opened


def dealt(matrix: str, values: Array, depth: int) -> Array:
    """What each lane holds of ``values``, [32, elements], by the manual."""
    held = elements(matrix, depth)
    places = [[manual_place(matrix, lane, i) for i in range(held)] for lane in range(32)]
    return np.array([[values[place] for place in row] for row in places], dtype=values.dtype)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_stand_in_multiplies_what_the_lanes_hold(depth: int, device: CpuDevice) -> None:
    """Small whole numbers, so that every sum is exact; the first of a pair lies in the low half of its word."""
    rng = np.random.default_rng(depth)
    a, b, c = (rng.integers(-9, 10, shape) for shape in ((M, depth), (depth, N), (M, N)))
    words = [dealt(name, x.astype(np.float16), depth).view(np.int32) for name, x in (("a", a), ("b", b))]
    assert words[0][0, 0] & 0xFFFF == int(a[0, 0:1].astype(np.float16).view(np.uint16)[0])
    sums = dealt("c", c.astype(np.float32), depth)
    device.launch(f"probe_{depth}", (1,), 32, [sums, *words])
    assert np.array_equal(sums, dealt("c", (c + a @ b).astype(np.float32), depth))


# --- the kernels' registers --------------------------------------------------------------------------------------


def attended(device: CpuDevice, kernel: str) -> float:
    """How far attention of drawn rows is from the reference; every row, key and feature matters."""
    rng, n, s, d = np.random.default_rng(5), 2, 40, 32
    q, k, v = (rng.standard_normal((1, n, s, d)).astype(np.float16) * 2 for _ in range(3))
    rows = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(1, s, n * d) for x in (q, k, v)]
    out, counts, scale = np.full((1, s, n * d), np.nan, np.float16), np.array([s], np.int32), float(np.float32(d**-0.5))
    sizes = (n, n, s, s, d, *(n * d, 0) * 3, 0, scale, 1, -1)
    device.launch(kernel, (1, n, 1), 128, [out, *rows, counts, *sizes])
    wide = [x.astype(np.float32) for x in (q, k, v)]
    batch = Batch(np.zeros((1, s), np.int32), counts)
    wanted = ReferenceOps(None, max_tokens=s).attention(*wide, batch, scale=scale, causal=True)  # type: ignore[arg-type]
    return float(np.abs(out.reshape(1, s, n, d).swapaxes(1, 2).astype(np.float64) - wanted).max())


@pytest.mark.parametrize("variant", [AMPERE, TURING], ids=lambda variant: variant.name)
def test_attention_is_that_of_the_reference_by_either_instruction(variant: Variant, device: CpuDevice) -> None:
    assert attended(device, variant.name) < 0.01


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_number_from_the_wrong_place_is_seen(fault: Variant, device: CpuDevice) -> None:
    assert not attended(device, fault.name) < 0.1
