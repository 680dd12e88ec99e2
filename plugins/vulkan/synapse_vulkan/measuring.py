"""How fast an opened device computes: every variant of the product and attention, each held against what is right."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.ops.tensor_ops import Batch
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_vulkan.arena import plan
from synapse_vulkan.attention_shape import shape_for
from synapse_vulkan.binding import VulkanFault
from synapse_vulkan.pace import Pace
from synapse_vulkan.product import FEW_ROWS, NARROW, NARROW_ROWS, VARIANTS, Products, Variant, candidates
from synapse_vulkan.recording import Outside, Recording, View, contiguous
from synapse_vulkan.replay import Places, Replay
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.vulkan_ops import VulkanOps
from synapse_vulkan.weight_memory import WeightMemory

#: Depth and columns of a trial: some milliseconds on a software device, enough to fill another; and many rows.
_SMALL, _SMALL_ROWS = (256, 512), 128
_LARGE, _LARGE_ROWS = (1024, 1024), 2048
#: Positions, heads and features of a head in the trial of attention.
_ATTENTION_TRIAL = (256, 4, 64)
_REPEATS = 3
_LONG_ENOUGH_S = 0.02
#: A large trial that the small one lets expect to take longer is left out: one submission must not hold a device up.
_LONGEST_TRIAL_S = 0.1
#: A variant below this share of the fastest is not tried on fewer rows.
_HOPELESS = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """Billions of floating operations a second: of variants by name for many rows, few and fewer; of attention."""

    many: Mapping[str, float]
    few: Mapping[str, float]
    narrow: Mapping[str, float]
    attention: float

    def products(self) -> Products:
        """The fastest variants."""
        named = {variant.name: variant for variant in (NARROW, *VARIANTS)}
        return Products(*(named[_fastest(speeds)] for speeds in (self.many, self.few, self.narrow)))

    def pace(self) -> Pace:
        """What submissions are cut by."""
        return Pace(max(self.many.values()) * 1e9, self.attention * 1e9)

    def evidence(self) -> dict[str, Any]:
        """As a row of ``backends`` shows it."""
        chosen = self.products()
        return {
            "product": chosen.many.name,
            "product_gflops": {name: round(speed, 1) for name, speed in self.many.items()},
            "product_of_few_rows": chosen.for_rows(FEW_ROWS).name,
            "product_of_a_vector": chosen.narrow.name,
            "attention_gflops": round(self.attention, 1),
        }


def choose_products(runtime: Runtime) -> None:
    """Measure ``runtime`` and let it use what is fastest; one line on standard error says what and how fast."""
    measured = measure(runtime)
    runtime.products, runtime.pace = measured.products(), measured.pace()
    chosen = runtime.products
    said = ", ".join(f"{variant} {speed:.1f}" for variant, speed in measured.many.items())
    sys.stderr.write(
        f"vulkan: {runtime.device.facts.name}: products by {chosen.many.name}, of up to {FEW_ROWS} rows by "
        f"{chosen.for_rows(FEW_ROWS).name}, of up to {NARROW_ROWS} by {chosen.narrow.name} "
        f"(GFLOP/s: {said}; attention {measured.attention:.1f})\n"
    )


def exercise() -> Mapping[str, Any]:
    """Open the device, measure it and close it; the evidence of a probe.

    Raises:
        VulkanFault: a kernel could not be run or came out wrong.

    """
    runtime = Runtime()
    try:
        return measure(runtime).evidence()
    finally:
        runtime.close()


def measure(runtime: Runtime) -> Measured:
    """Every variant the device can run; raises ``VulkanFault`` for a wrong product."""
    facts = runtime.device.facts
    software = facts.kind == "software"

    def speeds(variants: Iterable[Variant], rows: int, shape: tuple[int, int]) -> dict[str, float]:
        return {variant.name: speed_of(runtime, variant, rows, *shape) for variant in variants}

    variants, shape = candidates(facts.limits, software=software), _SMALL
    many = speeds(variants, _SMALL_ROWS, shape)
    if not software:
        able = [variant for variant in variants if _expected(many[variant.name]) < _LONGEST_TRIAL_S]
        if able:
            shape = _LARGE
            many |= speeds(able, _LARGE_ROWS, shape)
    hopeful = [variant for variant in variants if many[variant.name] >= _HOPELESS * max(many.values())]
    few = speeds(hopeful, FEW_ROWS, shape)
    narrow = speeds([NARROW, *hopeful], NARROW_ROWS, shape)
    return Measured(many, few, narrow, attention_speed(runtime))


def speed_of(runtime: Runtime, variant: Variant, rows: int, depth: int, columns: int) -> float:
    """Billions of floating operations a second of one product; raises ``VulkanFault`` where it comes out wrong."""
    # Small whole numbers: their sums are exact, whatever the order.
    generator = np.random.default_rng(1)
    x = generator.integers(-4, 5, (1, rows, depth)).astype(np.float32)
    w = generator.integers(-4, 5, (columns, depth)).astype(np.float32)
    entry = StoredTensor("w", "F32", w.shape, memoryview(w.tobytes()))
    memory = WeightMemory(runtime.device, CheckpointWeights({"w": entry}), max_tokens=1)
    recording = Recording()
    ops = VulkanOps(memory, recording, Products.only(variant))
    product = ops.linear(contiguous(memory.put(x), 1, rows, depth), memory.weight("w", w.shape))
    seconds, found = _timed(runtime, memory, recording, ops, product)
    if not np.array_equal(found, w @ x[0, -1]):
        raise VulkanFault(f"a product of small whole numbers came out wrong by {variant.name}; update the driver")
    return 2.0 * rows * depth * columns / seconds / 1e9


def attention_speed(runtime: Runtime) -> float:
    """Billions of floating operations a second of attention over some tokens."""
    positions, heads, size = _ATTENTION_TRIAL
    generator = np.random.default_rng(1)
    laid = generator.standard_normal((1, positions, heads * size), dtype=np.float32)
    memory = WeightMemory(runtime.device, CheckpointWeights({}), max_tokens=positions)
    recording = Recording()
    ops = VulkanOps(memory, recording, runtime.products, shape_for(runtime.device.facts.kind))
    rows = replace(contiguous(memory.put(laid), 1, positions, heads * size), heads=heads)
    counts = contiguous(memory.put(np.array([positions], np.int32)), 1, 1, 1)
    mixed = ops.attention(rows, rows, rows, Batch(rows, counts), scale=size**-0.5)
    seconds, found = _timed(runtime, memory, recording, ops, mixed)
    if not np.isfinite(found).all():
        raise VulkanFault("attention over finite numbers came out as none; update the driver")
    return 4.0 * positions * positions * heads * size / seconds / 1e9


def _timed(
    runtime: Runtime, memory: WeightMemory, recording: Recording, ops: VulkanOps, value: View
) -> tuple[float, npt.NDArray[np.float32]]:
    """The best seconds of the recording, and the last row of ``value``; ``memory`` is freed."""
    device = runtime.device
    # The last row leaves, so that what was computed can be held against what is right.
    result = contiguous(Outside("result"), 1, 1, value.width)
    ops.copy(_last_row(value), result)
    layout = plan(recording.lives())
    arena, out = device.device_buffer(layout.size), device.host_buffer(4 * value.width)
    replay = Replay(device, runtime.kernels, recording, Places(arena, layout, {"result": (out, 0, out.size)}))
    try:
        best = _best_seconds(replay)
        assert out.mapped is not None
        return best, np.frombuffer(out.mapped, np.float32).copy()
    finally:
        replay.close()
        device.free(arena)
        device.free(out)
        memory.close()


def _fastest(speeds: Mapping[str, float]) -> str:
    return max(speeds, key=lambda variant: speeds[variant])


def _expected(gflops: float) -> float:
    """Seconds of a large trial."""
    return 2.0 * _LARGE_ROWS * _LARGE[0] * _LARGE[1] / gflops / 1e9


def _last_row(x: View) -> View:
    return replace(x, positions=1, offset=x.offset + (x.positions - 1) * x.position_stride, heads=None)


def _best_seconds(replay: Replay) -> float:
    """Of a few runs, or of one that takes long enough to be told from noise; the first compiles and is left out."""
    _seconds(replay)
    best = _seconds(replay)
    for _ in range(_REPEATS):
        if best > _LONG_ENOUGH_S:
            break
        best = min(best, _seconds(replay))
    return best


def _seconds(replay: Replay) -> float:
    began = time.perf_counter()
    replay.run()
    return time.perf_counter() - began
