"""Every tensor operation, recorded and replayed alone, against the numpy reference, by every variant of the product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from synapse_vulkan.arena import plan
from synapse_vulkan.attention_shape import DEVICE_SHAPE, SOFTWARE_SHAPE, AttentionShape
from synapse_vulkan.pace import Pace
from synapse_vulkan.product import NARROW, VARIANTS, Products, Variant
from synapse_vulkan.recording import Recording, Stored, Value, View, contiguous
from synapse_vulkan.replay import Places, Replay
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.vulkan_ops import RecordedCache, VulkanOps
from synapse_vulkan.weight_memory import DeviceWeight, WeightMemory

from synapse_host.hookspecs import DType
from synapse_host.ops.weight_source import WeightSource, checked_tensor
from synapse_host.owned_engine.weights import StoredTensor
from synapse_host.testing.ops_contract import OP_CASES, OpCase, OpsUnderTest, check_op

pytestmark = pytest.mark.usefixtures("vulkan_device")
PRODUCTS = [case for case in OP_CASES if case.op in ("linear", "logits")]
ATTENTIONS = [case for case in OP_CASES if case.op == "attention"]


class DrawnWeights:
    """A case's weights as a checkpoint holds them."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source

    def shaped_entry(self, name: str, shape: Any) -> StoredTensor:
        array = np.ascontiguousarray(checked_tensor(self.source, name, shape))
        return StoredTensor(name, "F32", array.shape, memoryview(array).cast("B"))

    def close(self) -> None:
        """Nothing to forget."""


class VulkanUnderTest(OpsUnderTest):
    """Inputs are tensors on the device; reading a handle replays all that was recorded."""

    def __init__(
        self,
        runtime: Runtime,
        dtype: DType = "f32",
        variant: Variant | None = None,
        shape: AttentionShape = SOFTWARE_SHAPE,
    ) -> None:
        self.dtype: DType = dtype
        self._runtime, self._shape = runtime, shape
        self._products = runtime.products if variant is None else Products.only(variant)
        self._memories: list[WeightMemory] = []

    def make(self, weights: WeightSource, *, max_tokens: int) -> VulkanOps:
        drawn: Any = DrawnWeights(weights)
        memory = WeightMemory(self._runtime.device, drawn, max_tokens=max_tokens, half=self.dtype == "f16")
        self._memories.append(memory)
        self.recording = Recording()
        self.ops = VulkanOps(memory, self.recording, self._products, self._shape)
        return self.ops

    def to_handle(self, array: npt.NDArray[Any], kind: str) -> Any:
        laid = array.transpose(0, 2, 1, 3) if kind == "heads" else array
        stored = self._memories[-1].put(np.ascontiguousarray(laid))
        texts, positions = laid.shape[0], laid.shape[1] if laid.ndim > 1 else 1
        width = int(np.prod(laid.shape[2:]))
        return replace(contiguous(stored, texts, positions, width), heads=laid.shape[2] if kind == "heads" else None)

    def from_handle(self, handle: Any, kind: str) -> npt.NDArray[Any]:
        if isinstance(handle, DeviceWeight):
            return self._stored_rows(handle)
        out = self.recording.rows(handle.texts, handle.positions, handle.width)
        if kind == "vectors":
            return self._run(handle, handle.texts * handle.width, np.float32).reshape(handle.texts, handle.width)
        self.ops.copy(handle, out)
        values = self._run(out, out.rows * out.width, np.int32 if kind == "picks" else np.float32)
        shape = (out.texts, out.positions, out.width)
        if kind == "heads":
            heads = handle.heads or 1
            return values.reshape(*shape[:2], heads, shape[2] // heads).transpose(0, 2, 1, 3)
        return values.reshape(shape[:2] if kind == "picks" else shape)

    def new_cache(self) -> RecordedCache:
        return {}

    def close(self) -> None:
        for memory in self._memories:
            memory.close()

    def _stored_rows(self, weight: DeviceWeight) -> npt.NDArray[Any]:
        view = self.ops.table_row(weight, 0)
        rows = weight.plain_rows()
        whole = View(view.memory, 1, rows.rows, rows.width, 0, 0, rows.stride)
        return self.from_handle(whole, "rows")[0]

    def _run(self, view: View, count: int, dtype: Any) -> npt.NDArray[Any]:
        device = self._runtime.device
        result = device.host_buffer(1 << 20)
        for value in self.recording.values:
            value.last = len(self.recording.steps)
        layout = plan(self.recording.lives())
        arena = device.device_buffer(max(layout.size, 256))
        places = Places(arena, layout, {"result": (result, 0, result.size)})
        replay = Replay(device, self._runtime.kernels, self.recording, places, Pace(4e4))
        try:
            replay.run()
            memory: Any = view.memory
            region = places.of(memory, {id(value): at for at, value in enumerate(self.recording.values)})
            assert region[0].mapped is not None
            return np.frombuffer(region[0].mapped, dtype, count, region[1] + 4 * view.offset).copy()
        finally:
            replay.close()
            device.free(arena)
            device.free(result)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    opened = Runtime()
    before = opened.device.allocated
    yield opened
    assert opened.device.allocated == before
    opened.close()


def check(subject: VulkanUnderTest, case: OpCase) -> None:
    try:
        check_op(subject, case)
    finally:
        subject.close()


@pytest.mark.parametrize("case", OP_CASES, ids=str)
def test_operation_agrees_with_the_reference(case: OpCase, runtime: Runtime) -> None:
    check(VulkanUnderTest(runtime), case)


@pytest.mark.parametrize("variant", [*VARIANTS[1:], NARROW], ids=lambda variant: variant.name)
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_every_variant_of_the_product_agrees(case: OpCase, variant: Variant, runtime: Runtime) -> None:
    check(VulkanUnderTest(runtime, variant=variant), case)


@pytest.mark.parametrize("case", ATTENTIONS, ids=str)
def test_attention_agrees_with_64_queries_a_group(case: OpCase, runtime: Runtime) -> None:
    check(VulkanUnderTest(runtime, shape=DEVICE_SHAPE), case)


@pytest.mark.parametrize("case", [case for case in PRODUCTS if "then" not in str(case)], ids=str)
def test_products_of_matrices_stored_in_float16_agree(case: OpCase, runtime: Runtime) -> None:
    check(VulkanUnderTest(runtime, "f16", variant=NARROW), case)


def test_a_value_no_step_touches_takes_no_room() -> None:
    recording = Recording()
    recording.new(10)
    assert plan(recording.lives()).size == 0
    assert isinstance(recording.values[0], Value)
    assert not isinstance(recording.values[0], Stored)
