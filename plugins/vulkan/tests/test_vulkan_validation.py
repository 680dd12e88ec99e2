"""The validation and synchronisation layers watch whole models run: they see what is planted and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synapse_vulkan import segment_recording
from synapse_vulkan.attention_shape import DEVICE_SHAPE
from synapse_vulkan.backend import VulkanBackend
from synapse_vulkan.binding import open_binding
from synapse_vulkan.hazards import Hazards
from synapse_vulkan.kernel_files import read_kernels
from synapse_vulkan.kernels import Kernels
from synapse_vulkan.measuring import choose_products
from synapse_vulkan.product import VARIANTS, Products
from synapse_vulkan.runtime import Runtime
from synapse_vulkan.upload import Uploader

from synapse_host.ops.tolerances import END_TO_END
from synapse_host.owned_engine.engine import ModelSettings, OwnedEngine
from synapse_host.owned_engine.family_table import family_named
from synapse_host.owned_engine.weights import CheckpointWeights
from synapse_host.testing.engine_runs import batch_of, ignore_progress, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, TinyModel, write_model
from synapse_host.testing.models.tiny_modernbert import TinyModernBert
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3

pytestmark = pytest.mark.usefixtures("vulkan_device")
LAYER = "VK_LAYER_KHRONOS_validation"
MODELS: dict[str, TinyModel] = {
    "bert": TinyBert(61, 24, 2, 3, 37, 101, 600),
    "modernbert": TinyModernBert(63, 24, 3, 3, 37, 101, 1200, span=64),
}


class Watch:
    """A runtime whose every call the layers see; what they say is kept in ``messages``."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        vk = open_binding()
        ffi = vk.ffi
        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", self._heard)
        enabled = ffi.new("VkValidationFeatureEnableEXT[]", [4])  # synchronisation validation
        messenger = ffi.new(
            "VkDebugUtilsMessengerCreateInfoEXT*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
                "messageSeverity": 0x1100,  # warnings and errors
                "messageType": 0x7,
                "pfnUserCallback": self._callback,
            },
        )
        features = ffi.new(
            "VkValidationFeaturesEXT*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                "pNext": messenger,
                "enabledValidationFeatureCount": 1,
                "pEnabledValidationFeatures": enabled,
            },
        )
        self.runtime = Runtime([LAYER], ["VK_EXT_debug_utils", "VK_EXT_validation_features"], features)
        create = self._function("vkCreateDebugUtilsMessengerEXT")
        made = ffi.new("VkDebugUtilsMessengerEXT*")
        assert create(self.runtime.device.instance, messenger, ffi.NULL, made) == 0
        self._messenger = made[0]

    def close(self) -> None:
        vk = open_binding()
        device = self.runtime.device
        self.runtime.kernels.close()
        device.close_device()
        self._function("vkDestroyDebugUtilsMessengerEXT")(device.instance, self._messenger, vk.ffi.NULL)
        vk.lib.vkDestroyInstance(device.instance, vk.ffi.NULL)

    def _function(self, name: str) -> Any:
        vk = open_binding()
        found = vk.lib.vkGetInstanceProcAddr(self.runtime.device.instance, name.encode())
        return vk.ffi.cast(f"PFN_{name}", found)

    def _heard(self, severity: int, kind: int, data: Any, user: Any) -> int:
        self.messages.append(open_binding().ffi.string(data.pMessage).decode("utf-8", "replace"))
        return 0


@pytest.fixture
def watch() -> Iterator[Watch]:
    vk = open_binding()
    count = vk.ffi.new("uint32_t*")
    vk.lib.vkEnumerateInstanceLayerProperties(count, vk.ffi.NULL)
    layers = vk.ffi.new("VkLayerProperties[]", count[0])
    vk.lib.vkEnumerateInstanceLayerProperties(count, layers)
    names = {vk.ffi.string(layers[place].layerName).decode() for place in range(count[0])}
    if LAYER not in names:
        assert "vulkan" not in os.environ.get("SYNAPSE_TEST_REQUIRE", ""), f"{LAYER} is not installed"
        pytest.skip(f"{LAYER} is not installed")
    watched = Watch()
    yield watched
    watched.messages.clear()
    watched.close()
    assert watched.messages == [], "something was forgotten on the device"


def run_model(runtime: Runtime, directory: Path, max_tokens: int, pooling: Any, half: bool = False) -> Any:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    with (directory / "model.safetensors").open("rb") as file:
        weights = CheckpointWeights.open(file.fileno(), (directory / "model.safetensors").stat().st_size)
    family = family_named(config["model_type"])
    settings = ModelSettings(family, config, "f16" if half else "f32", max_tokens, 1)
    engine = OwnedEngine(VulkanBackend(runtime, weights, max_tokens=max_tokens, half=half), settings)
    rows = seeded_rows([1, 15, 33, 33, 300, max_tokens], 97)
    for _ in range(2):
        vectors = engine.embed(batch_of(rows, pooling), ignore_progress)
    assert np.isfinite(vectors).all()
    engine.unload()
    return vectors


@pytest.mark.parametrize("name", MODELS)
def test_encoders_run_and_nothing_is_reported(name: str, watch: Watch, tmp_path: Path) -> None:
    write_model(tmp_path, MODELS[name])
    before = watch.runtime.device.allocated
    run_model(watch.runtime, tmp_path, MODELS[name].config()["max_position_embeddings"], "mean", half=name == "bert")
    assert watch.runtime.device.allocated == before
    assert watch.messages == []


def test_a_decoder_and_every_variant_of_the_product_run_and_nothing_is_reported(watch: Watch, tmp_path: Path) -> None:
    choose_products(watch.runtime)
    write_qwen3(tmp_path, TinyQwen3(42, 16, 2, 2, 1, 12, 24, 97, 300, tied=True))
    run_model(watch.runtime, tmp_path, 300, "last")
    assert watch.messages == []


def test_what_a_gpu_gets_runs_clean_and_comes_close(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products and attention staged in shared memory, which no software device would be given."""
    write_model(tmp_path, MODELS["modernbert"])
    wanted = run_model(watch.runtime, tmp_path, 400, "mean")
    monkeypatch.setattr(segment_recording, "shape_for", lambda kind: DEVICE_SHAPE)
    monkeypatch.setattr(watch.runtime, "products", Products.only(VARIANTS[-1]))
    found = run_model(watch.runtime, tmp_path, 400, "mean")
    assert np.abs(found - wanted).max() <= END_TO_END["f32"].max_abs_error
    assert watch.messages == []


def test_a_forgotten_barrier_is_seen(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hazards, "need_barrier", lambda self, reads, writes: False)
    write_model(tmp_path, MODELS["bert"])
    run_model(watch.runtime, tmp_path, 600, "mean")
    assert any("SYNC-HAZARD-READ-AFTER-WRITE" in message.upper().replace("_", "-") for message in watch.messages)


def test_what_is_forgotten_on_the_device_is_seen() -> None:
    watch = Watch()
    vk = open_binding()
    watch.runtime.device.create("Fence", {"sType": vk.VK_STRUCTURE_TYPE_FENCE_CREATE_INFO})
    watch.close()
    assert any("has not been destroyed" in message for message in watch.messages)


def test_a_wrong_call_is_seen(watch: Watch) -> None:
    device = watch.runtime.device
    pool = device.create(
        "CommandPool",
        {"sType": device.vk.VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, "queueFamilyIndex": 7},
    )
    device.destroy("CommandPool", pool)
    assert any("queueFamilyIndex" in message for message in watch.messages)


def test_uploads_through_a_staging_buffer_are_clean_and_arrive(watch: Watch) -> None:
    device = watch.runtime.device
    target, uploader = device.device_buffer(1 << 24), Uploader(device, staged=True)
    data = np.random.default_rng(1).integers(0, 255, (1 << 24) - 256, dtype=np.uint8)
    uploader.put(target, 256, data)
    assert target.mapped is None or np.array_equal(np.frombuffer(target.mapped, np.uint8)[256:], data)
    uploader.close()
    device.free(target)
    assert watch.messages == []


def test_kernels_are_made_once_and_freed(watch: Watch) -> None:
    kernels = Kernels(watch.runtime.device, read_kernels())
    first = kernels.pipeline("copy", (0,))
    assert kernels.pipeline("copy", (0,)) == first
    assert len(kernels) == 1
    kernels.close()
    assert watch.messages == []
