"""Which variant of the product is fastest on an opened device: each is run on the same numbers, held and timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_vulkan.arena import plan
from synapse_vulkan.binding import VulkanFault
from synapse_vulkan.product import VARIANTS, Variant
from synapse_vulkan.recording import Outside, Recording, View, contiguous
from synapse_vulkan.replay import Places, Replay
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.vulkan_ops import VulkanOps
from synapse_vulkan.weight_memory import WeightMemory

#: Rows, depth and columns of the trial product: some milliseconds on a software device, enough to fill another.
_SOFTWARE_TRIAL = (128, 256, 512)
_DEVICE_TRIAL = (2048, 1024, 1024)
_REPEATS = 3
_LONG_ENOUGH_S = 0.02


def choose_variant(runtime: Runtime) -> None:
    """Measure ``runtime`` and let it use the fastest variant; one line on standard error says which and how fast."""
    speeds = measure(runtime)
    name = max(speeds, key=lambda variant: speeds[variant])
    runtime.variant = next(variant for variant in VARIANTS if variant.name == name)
    runtime.speed = speeds[name] * 1e9
    said = ", ".join(f"{variant} {speed:.1f}" for variant, speed in speeds.items())
    sys.stderr.write(f"vulkan: {runtime.device.facts.name}: products by {name} (GFLOP/s: {said})\n")


def exercise() -> Mapping[str, Any]:
    """Open the device, measure it and close it; the evidence of a probe.

    Raises:
        VulkanFault: a kernel could not be run or came out wrong.

    """
    runtime = Runtime()
    try:
        speeds = measure(runtime)
    finally:
        runtime.close()
    best = max(speeds, key=lambda variant: speeds[variant])
    return {"product": best, "product_gflops": {name: round(speed, 1) for name, speed in speeds.items()}}


def measure(runtime: Runtime) -> dict[str, float]:
    """Billions of floating operations a second of every variant; raises ``VulkanFault`` for a wrong product."""
    shape = _SOFTWARE_TRIAL if runtime.device.facts.kind == "software" else _DEVICE_TRIAL
    return {variant.name: speed_of(runtime, variant, *shape) for variant in VARIANTS}


def speed_of(runtime: Runtime, variant: Variant, rows: int, depth: int, columns: int) -> float:
    """Billions of floating operations a second of one product; raises ``VulkanFault`` where it comes out wrong."""
    # Small whole numbers: their sums are exact, whatever the order.
    generator = np.random.default_rng(1)
    x = generator.integers(-4, 5, (1, rows, depth)).astype(np.float32)
    w = generator.integers(-4, 5, (columns, depth)).astype(np.float32)
    entry = StoredTensor("w", "F32", w.shape, memoryview(w.tobytes()))
    device = runtime.device
    memory = WeightMemory(device, CheckpointWeights({"w": entry}), max_tokens=1)
    recording = Recording()
    ops = VulkanOps(memory, recording, variant)
    product = ops.linear(contiguous(memory.put(x), 1, rows, depth), memory.weight("w", w.shape))
    # The last row leaves, so that what was computed can be held against what is right.
    result = contiguous(Outside("result"), 1, 1, columns)
    ops.copy(_last_row(product), result)
    layout = plan(recording.lives())
    arena, out = device.device_buffer(layout.size), device.host_buffer(4 * columns)
    places = Places(arena, layout, {"result": (out, 0, out.size)})
    replay = Replay(device, runtime.kernels, recording, places, work_limit=float("inf"))
    try:
        best = _best_seconds(replay)
        assert out.mapped is not None
        found = np.frombuffer(out.mapped, np.float32).copy()
    finally:
        replay.close()
        device.free(arena)
        device.free(out)
        memory.close()
    if not np.array_equal(found, w @ x[0, -1]):
        raise VulkanFault(f"a product of small whole numbers came out wrong by {variant.name}; update the driver")
    return 2.0 * rows * depth * columns / best / 1e9


def _last_row(x: View) -> View:
    return replace(x, positions=1, offset=x.offset + (x.positions - 1) * x.position_stride)


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
