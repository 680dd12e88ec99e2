"""Devices other than the one at hand, pretended at the binding: their memory, their limits and their drivers.

What a pretended driver is asked for, the real one does; what it may not be asked for fails the test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import device as device_module
from synapse_vulkan import instance as instance_module
from synapse_vulkan.backend import VulkanBackend
from synapse_vulkan.binding import DeviceMemoryFull, open_binding
from synapse_vulkan.evidence import read_machine
from synapse_vulkan.measuring import choose_products, measure
from synapse_vulkan.memory_types import DEVICE_LOCAL, HOST_CACHED, HOST_COHERENT, HOST_VISIBLE, MAPPABLE
from synapse_vulkan.runtime import Runtime

from synapse_host.hookspecs import DType, PluginError
from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.family_table import family_named
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_host.testing.engine_runs import batch_of, ignore_progress, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert

pytestmark = pytest.mark.usefixtures("vulkan_device")
MIB, GIB = 2**20, 2**30
SEEN = HOST_VISIBLE | HOST_COHERENT
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=500, positions=64)
ROWS = [1, 3, 20, 40, 40]


@dataclass
class Pretended:
    """A device that is not there. ``limits`` are fields of ``VkPhysicalDeviceLimits``; no ``types`` are its own."""

    limits: Mapping[str, int] = field(default_factory=dict)
    heaps: Sequence[int] = ()
    types: Sequence[tuple[int, int]] = ()
    kind: int | None = None
    name: bytes | None = None
    driver: bytes | None = None
    allocation: int | None = None
    #: Of every allocation alive, the place of its type.
    placed: dict[Any, int] = field(default_factory=dict)
    taken: list[int] = field(default_factory=lambda: [0] * 8)
    mapped: list[int] = field(default_factory=list)
    copies: int = 0


PRETENDED_CALLS = {
    "vkGetPhysicalDeviceProperties": "read_properties",
    "vkGetPhysicalDeviceProperties2": "read_more_properties",
    "vkGetPhysicalDeviceMemoryProperties": "read_memory",
    "vkGetBufferMemoryRequirements": "read_requirements",
    "vkAllocateMemory": "allocate",
    "vkFreeMemory": "free",
    "vkMapMemory": "map",
    "vkCmdCopyBuffer": "copy",
    "vkCreateBufferView": "view",
    "vkUpdateDescriptorSets": "bind",
}


class PretendingLibrary:
    """The loader's functions; those that tell of a device or give its memory speak of ``pretended``."""

    def __init__(self, vk: Any, pretended: Pretended) -> None:
        self._lib, self._ffi, self._is = vk.lib, vk.ffi, pretended
        self._sizes: dict[Any, int] = {}

    def __getattr__(self, name: str) -> Any:
        own = PRETENDED_CALLS.get(name)
        return getattr(self._lib, name) if own is None else getattr(self, own)

    def read_properties(self, handle: Any, out: Any) -> None:
        self._lib.vkGetPhysicalDeviceProperties(handle, out)
        for name, value in self._is.limits.items():
            if name == "maxComputeWorkGroupSize":
                out.limits.maxComputeWorkGroupSize[0] = value
            else:
                setattr(out.limits, name, value)
        if self._is.kind is not None:
            out.deviceType = self._is.kind
        if self._is.name is not None:
            out.deviceName = self._is.name

    def read_more_properties(self, handle: Any, out: Any) -> None:
        self._lib.vkGetPhysicalDeviceProperties2(handle, out)
        if self._is.driver is not None:
            about = self._ffi.cast("VkPhysicalDeviceDriverProperties*", out.pNext)
            if about.sType == open_binding().VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES:
                about.driverInfo = self._is.driver
        if self._is.allocation is not None:
            size = self._ffi.cast("VkPhysicalDeviceMaintenance3Properties*", out.pNext)
            if size.sType == open_binding().VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES:
                size.maxMemoryAllocationSize = self._is.allocation

    def read_memory(self, handle: Any, out: Any) -> None:
        self._lib.vkGetPhysicalDeviceMemoryProperties(handle, out)
        if not self._is.types:
            return
        out.memoryHeapCount, out.memoryTypeCount = len(self._is.heaps), len(self._is.types)
        for place, (flags, heap) in enumerate(self._is.types):
            out.memoryTypes[place].propertyFlags, out.memoryTypes[place].heapIndex = flags, heap
        local = {heap for flags, heap in self._is.types if flags & DEVICE_LOCAL}
        for place, size in enumerate(self._is.heaps):
            out.memoryHeaps[place].size, out.memoryHeaps[place].flags = size, int(place in local)

    def read_requirements(self, handle: Any, buffer: Any, out: Any) -> None:
        self._lib.vkGetBufferMemoryRequirements(handle, buffer, out)
        if self._is.types:
            out.memoryTypeBits = (1 << len(self._is.types)) - 1

    def allocate(self, handle: Any, info: Any, allocator: Any, made: Any) -> int:
        assert info.allocationSize <= (self._is.allocation or info.allocationSize), "more than is given at once"
        if not self._is.types:
            return int(self._lib.vkAllocateMemory(handle, info, allocator, made))
        place = info.memoryTypeIndex
        heap = self._is.types[place][1]
        if self._is.taken[heap] + info.allocationSize > self._is.heaps[heap]:
            return -2
        info.memoryTypeIndex = 0
        result = int(self._lib.vkAllocateMemory(handle, info, allocator, made))
        self._is.placed[made[0]] = place
        self._is.taken[heap] += info.allocationSize
        self._sizes[made[0]] = info.allocationSize
        return result

    def free(self, handle: Any, memory: Any, allocator: Any) -> None:
        if memory in self._is.placed:
            self._is.taken[self._is.types[self._is.placed.pop(memory)][1]] -= self._sizes.pop(memory)
        self._lib.vkFreeMemory(handle, memory, allocator)

    def map(self, handle: Any, memory: Any, *rest: Any) -> int:
        if self._is.types:
            place = self._is.placed[memory]
            assert self._is.types[place][0] & MAPPABLE == MAPPABLE, (
                "mapped memory that the host cannot see, or must flush"
            )
            self._is.mapped.append(place)
        return int(self._lib.vkMapMemory(handle, memory, *rest))

    def view(self, handle: Any, info: Any, *rest: Any) -> int:
        half = info.format == open_binding().VK_FORMAT_R16G16B16A16_SFLOAT
        elements = info.range // (8 if half else 16)
        assert elements <= self._is.limits.get("maxTexelBufferElements", elements), "more than a texel buffer may have"
        return int(self._lib.vkCreateBufferView(handle, info, *rest))

    def bind(self, handle: Any, count: int, writes: Any, *rest: Any) -> None:
        for write in (writes[place] for place in range(count)):
            if write.descriptorType == open_binding().VK_DESCRIPTOR_TYPE_STORAGE_BUFFER:
                size = write.pBufferInfo.range
                assert size <= self._is.limits.get("maxStorageBufferRange", size), "more than a storage buffer may have"
        self._lib.vkUpdateDescriptorSets(handle, count, writes, *rest)

    def copy(self, *arguments: Any) -> None:
        self._is.copies += 1
        self._lib.vkCmdCopyBuffer(*arguments)


class PretendingBinding:
    """The module of declarations with the library of a pretended device."""

    def __init__(self, pretended: Pretended) -> None:
        self._vk = open_binding()
        self.lib = PretendingLibrary(self._vk, pretended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vk, name)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pretended], None]:
    def set_up(pretended: Pretended) -> None:
        binding = PretendingBinding(pretended)
        for module in (device_module, instance_module):
            monkeypatch.setattr(module, "open_binding", lambda: binding)

    return set_up


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder, TINY)
    return folder


@contextmanager
def opened() -> Iterator[Runtime]:
    runtime = Runtime()
    try:
        yield runtime
    finally:
        assert runtime.device.allocated == 256, "the blank texels alone stay"
        runtime.close()


def vectors_on(runtime: Runtime, folder: Path, lengths: Sequence[int] = ROWS, dtype: DType = "f32") -> Any:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with (folder / "model.safetensors").open("rb") as file:
        weights = CheckpointWeights.open(file.fileno(), (folder / "model.safetensors").stat().st_size)
    settings = ModelSettings(family_named(config["model_type"]), config, dtype, 64, 1)
    engine = OwnedEngine(VulkanBackend(runtime, weights, max_tokens=64, half=dtype == "f16"), settings)
    try:
        return engine.embed(batch_of(seeded_rows(list(lengths), TINY.vocab)), ignore_progress)
    finally:
        engine.unload()


@pytest.fixture(scope="module")
def here(model: Path) -> Any:
    """The vectors of the device that is there."""
    with opened() as runtime:
        return vectors_on(runtime, model)


#: Memory by what kind of device has it; the bits of ``types`` and the place of their heap.
MEMORIES = {
    "card without a window": Pretended(
        heaps=[GIB, GIB], types=[(DEVICE_LOCAL, 0), (SEEN, 1), (SEEN | HOST_CACHED, 1)], kind=2
    ),
    "card with a small window": Pretended(
        heaps=[GIB, GIB, 4 * MIB],
        types=[(DEVICE_LOCAL, 0), (SEEN, 1), (SEEN | HOST_CACHED, 1), (DEVICE_LOCAL | SEEN, 2)],
        kind=2,
    ),
    "processor that must flush": Pretended(
        heaps=[GIB], types=[(DEVICE_LOCAL | HOST_VISIBLE | HOST_CACHED, 0), (DEVICE_LOCAL | SEEN, 0)], kind=1
    ),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_other_layouts_of_memory_give_the_same_bits(
    name: str, here: Any, model: Path, pretend: Callable[[Pretended], None]
) -> None:
    pretended = MEMORIES[name]
    pretend(pretended)
    with opened() as runtime:
        # A kind of its own has other workgroups in attention, and other bits; memory alone has none.
        object.__setattr__(runtime.device.facts, "kind", "software")
        assert vectors_on(runtime, model).tobytes() == here.tobytes()
    staged = pretended.kind == 2
    assert bool(pretended.copies) == staged
    assert set(pretended.mapped) == ({2} if staged else {1})
    assert not pretended.placed


def test_what_a_card_has_is_not_filled_up_from_the_host(pretend: Callable[[Pretended], None]) -> None:
    pretended = Pretended(heaps=[16 * MIB, GIB], types=[(DEVICE_LOCAL, 0), (SEEN | HOST_CACHED, 1)], kind=2)
    pretend(pretended)
    with opened() as runtime:
        first = runtime.device.device_buffer(12 * MIB)
        with pytest.raises(DeviceMemoryFull, match="unload a model"):
            runtime.device.device_buffer(12 * MIB)
        host = runtime.device.host_buffer(64 * MIB)
        assert host.mapped is not None
        runtime.device.free(host)
        runtime.device.free(first)
        # What was freed may be taken again.
        runtime.device.free(runtime.device.device_buffer(12 * MIB))


SMALL_GROUPS = {"maxComputeWorkGroupInvocations": 128, "maxComputeWorkGroupSize": 128}


def test_workgroups_of_128_leave_out_the_variants_that_need_256(
    here: Any, model: Path, pretend: Callable[[Pretended], None]
) -> None:
    pretend(Pretended(limits=SMALL_GROUPS))
    with opened() as runtime:
        measured = measure(runtime)
        assert all(name.startswith("direct") for name in measured.many)
        assert measured.evidence()["product"] in measured.many
        choose_products(runtime)
        assert vectors_on(runtime, model).tobytes() == here.tobytes()


def test_a_card_is_measured_by_every_variant_and_number_of_rows(pretend: Callable[[Pretended], None]) -> None:
    pretend(Pretended(kind=2))
    with opened() as runtime:
        measured = measure(runtime)
    assert {"tiled-64x64", "tiled-128x64"} < set(measured.many)
    # What is hopeless for many rows is not tried on fewer.
    assert set(measured.few) <= set(measured.many)
    assert set(measured.narrow) == {*measured.few, "direct-2x4"}


def test_a_table_larger_than_a_texel_buffer_is_kept_in_parts(
    here: Any, model: Path, pretend: Callable[[Pretended], None]
) -> None:
    # 500 rows of 32 numbers, where 600 times four of them fit: 7 parts.
    pretend(Pretended(limits={"maxTexelBufferElements": 600}))
    with opened() as runtime:
        found = vectors_on(runtime, model, ROWS[:3])
    assert found.tobytes() == here[:3].tobytes()


def test_a_table_larger_than_an_allocation_is_kept_in_parts(
    here: Any, model: Path, pretend: Callable[[Pretended], None]
) -> None:
    big = TinyBert(seed=5, hidden=32, layers=1, heads=4, intermediate=64, vocab=20_000, positions=64)
    folder = model / "big"
    folder.mkdir()
    write_model(folder, big)
    with opened() as runtime:
        wanted = vectors_on(runtime, folder)
    pretend(Pretended(allocation=MIB))
    with opened() as runtime:
        assert vectors_on(runtime, folder).tobytes() == wanted.tobytes()


def test_a_matrix_larger_than_a_texel_buffer_is_refused_by_name(
    model: Path, pretend: Callable[[Pretended], None]
) -> None:
    pretend(Pretended(limits={"maxTexelBufferElements": 300}))
    with opened() as runtime, pytest.raises(DeviceMemoryFull, match=r"matrix \S+intermediate\S+ has 64 x 32 numbers"):
        vectors_on(runtime, model)


def test_a_weight_larger_than_a_storage_buffer_is_never_bound_to_one(
    tmp_path: Path, pretend: Callable[[Pretended], None]
) -> None:
    """Its widest matrix has 16,384 bytes and no bias, its table 64,000."""
    write_model(tmp_path, TinyModernBert(63, 32, 2, 4, 64, TINY.vocab, 64, span=16))
    with opened() as runtime:
        wanted = vectors_on(runtime, tmp_path, [9])
    pretend(Pretended(limits={"maxStorageBufferRange": 9000}))
    with opened() as runtime:
        assert vectors_on(runtime, tmp_path, [9]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"maxStorageBufferRange": 6000}, "bytes in one buffer .* takes 6000; send shorter ones"),
        ({"maxTexelBufferElements": 600}, "bytes in one buffer .* takes 9600; send shorter ones"),
    ],
)
def test_rows_too_long_for_the_device_are_refused_with_both_numbers(
    limits: dict[str, int], said: str, model: Path, pretend: Callable[[Pretended], None]
) -> None:
    pretend(Pretended(limits=limits))
    with opened() as runtime, pytest.raises(PluginError, match=said) as refused:
        vectors_on(runtime, model, [60])
    assert refused.value.code == "invalid_request"


def test_more_workgroups_than_a_device_runs_are_refused(model: Path, pretend: Callable[[Pretended], None]) -> None:
    pretend(Pretended())
    with opened() as runtime:
        limits = runtime.device.facts.limits
        object.__setattr__(limits, "groups", 20)
        with pytest.raises(PluginError, match=r"workgroups .* runs 20") as refused:
            vectors_on(runtime, model, [60])
    assert refused.value.code == "invalid_request"


def test_another_device_and_another_driver_are_other_identities(pretend: Callable[[Pretended], None]) -> None:
    from synapse_vulkan.plugin import synapse_describe

    flags = []
    for pretended in (Pretended(), Pretended(name=b"Card B"), Pretended(driver=b"25.1"), Pretended(kind=2)):
        pretend(pretended)
        flags.append(dict(synapse_describe().build_flags))
    now, other_device, other_driver, card = flags
    assert other_device == {**now, "device": "Card B"}
    assert other_driver["driver"] != now["driver"]
    assert other_driver["driver"].endswith("25.1")
    assert "software_device" not in card
    assert read_machine().chosen is not None


def test_float16_halves_tables_and_matrices_and_comes_close(here: Any, model: Path) -> None:
    with opened() as runtime:
        found = vectors_on(runtime, model, dtype="f16")
    bound = END_TO_END["f16"]
    assert np.sum(found * here, axis=1).min() >= bound.min_cosine
    assert found.tobytes() != here.tobytes()


def test_numbers_past_float16_are_refused_by_the_name_of_their_tensor(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = StoredTensor.to_float32
    monkeypatch.setattr(StoredTensor, "to_float32", lambda tensor: exact(tensor) * np.float32(1e7))
    with opened() as runtime, pytest.raises(ValueError, match=r"the tensor \S+ has numbers up to .* with dtype f32"):
        vectors_on(runtime, model, dtype="f16")
