"""A device that is lost: a typed refusal, a worker that ends by itself, and another for the next request."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from synapse_vulkan import opening, plugin
from synapse_vulkan.binding import DeviceLost, DeviceMemoryFull, VulkanFault, check
from synapse_vulkan.device import Device
from synapse_vulkan.kernel_files import read_kernels
from synapse_vulkan.kernels import Kernels

from synapse_host.errors import EngineCrashed
from synapse_host.hookspecs import DeviceGone, PluginError
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model
from synapse_host.testing.running_host import RunningHost, load_model, python_path

pytestmark = pytest.mark.usefixtures("vulkan_device")
loaded = partial(loaded_model, plugin, settings={"allow_software_device": "true"})
TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)
DEVICE_LOST, NO_DEVICE_MEMORY = -4, -2


class FailingLibrary:
    """The loader's functions, one of which fails."""

    def __init__(self, library: Any, function: str, result: int) -> None:
        self._library = library
        setattr(self, function, lambda *arguments: result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)


@pytest.fixture
def device() -> Iterator[Device]:
    opened = opening.open_runtime().device
    library = opened.lib
    yield opened
    opened.lib = library


@pytest.mark.parametrize(
    ("result", "error"), [(-4, DeviceLost), (-1, DeviceMemoryFull), (-2, DeviceMemoryFull), (-13, VulkanFault)]
)
def test_a_result_becomes_the_error_it_means(result: int, error: type[Exception]) -> None:
    check(0, "vkQueueSubmit")
    with pytest.raises(error, match=r"vkQueueSubmit: VK_ERROR.*; ") as raised:
        check(result, "vkQueueSubmit")
    assert str(raised.value).split("; ")[1]


def test_a_kernel_that_does_not_compile_is_named_with_device_and_driver(device: Device) -> None:
    kernels = Kernels(device, read_kernels())
    device.lib = FailingLibrary(whole := device.lib, "vkCreateComputePipelines", -13)
    with pytest.raises(VulkanFault) as refused:
        kernels.pipeline("argmax", (7,))
    device.lib = whole
    kernels.close()
    assert str(refused.value) == (
        f"kernel 'argmax' with constants (7,) does not compile on {device.facts.name!r}, driver "
        f"{device.facts.driver!r}: vkCreateComputePipelines: VK_ERROR_UNKNOWN; update the driver of the GPU, or use "
        "another backend"
    )


@pytest.mark.parametrize("function", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_device_lost_in_a_request_is_a_typed_refusal(function: str, device: Device, tmp_path: Path) -> None:
    write_model(tmp_path, TINY)
    with loaded(tmp_path, max_tokens=64) as model:
        whole = device.lib
        device.lib = FailingLibrary(whole, function, DEVICE_LOST)
        if function == "vkWaitForFences":
            device.lib.vkQueueSubmit = lambda *arguments: 0
        with pytest.raises(DeviceGone, match=f"{function}: VK_ERROR_DEVICE_LOST") as gone:
            plugin.synapse_embed(model, batch_of(seeded_rows([5], 97)), ignore_progress)
        device.lib = whole
    assert gone.value.code == "inference_failed"


def test_a_device_lost_while_loading_is_the_same(device: Device, tmp_path: Path) -> None:
    write_model(tmp_path, TINY)
    device.lib = FailingLibrary(device.lib, "vkQueueSubmit", DEVICE_LOST)
    with pytest.raises(DeviceGone), loaded(tmp_path, max_tokens=64):
        pass


def test_a_full_device_is_out_of_memory_and_not_lost(device: Device, tmp_path: Path) -> None:
    write_model(tmp_path, TINY)
    device.lib = FailingLibrary(device.lib, "vkAllocateMemory", NO_DEVICE_MEMORY)
    with pytest.raises(PluginError, match=r"no memory .*bytes are taken here") as full, loaded(tmp_path, max_tokens=64):
        pass
    assert full.value.code == "oom"


def test_what_passes_the_heap_is_refused_before_the_driver_is_asked(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_memories", replace(device._memories, heaps=(device.allocated + 2**20,)))
    device.lib = FailingLibrary(device.lib, "vkAllocateMemory", DEVICE_LOST)
    with pytest.raises(DeviceMemoryFull, match="unload a model"):
        device.device_buffer(2**28)


def test_more_than_the_device_gives_at_once_is_refused_with_both_numbers(device: Device) -> None:
    most = device.facts.limits.allocation_bytes
    with pytest.raises(DeviceMemoryFull, match=f"{most + 1} bytes are more than the {most} "):
        device.device_buffer(most + 1)


def test_a_device_lost_while_memory_is_asked_for_is_not_full(device: Device) -> None:
    device.lib = FailingLibrary(device.lib, "vkAllocateMemory", DEVICE_LOST)
    with pytest.raises(DeviceLost, match="vkAllocateMemory"):
        device.device_buffer(2**20)


def test_a_load_that_fails_leaves_nothing_on_the_device(device: Device, tmp_path: Path) -> None:
    write_model(tmp_path, TINY)
    before = device.allocated
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    # Missing only after the embeddings and the first layers are there.
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(PluginError, match="the checkpoint has no tensor") as refused, loaded(tmp_path, max_tokens=64):
        pass
    assert refused.value.code == "artifact_invalid"
    assert device.allocated == before


LOSING = textwrap.dedent(
    """
    import os
    from pathlib import Path
    from synapse_vulkan import binding

    def check(result, call, intact=binding.check):
        if call == "vkQueueSubmit" and Path(os.environ["LOSE_THE_DEVICE"]).exists():
            result = -4
        intact(result, call)

    binding.check = check
    """
)


@pytest.mark.slow
def test_the_worker_ends_by_itself_and_the_next_request_is_served(tmp_path: Path) -> None:
    tiny, site, lost = tmp_path / "tiny", tmp_path / "site", tmp_path / "lost"
    tiny.mkdir()
    site.mkdir()
    write_model(tiny, TINY)
    (site / "sitecustomize.py").write_text(LOSING)
    environment = {**python_path(site), "LOSE_THE_DEVICE": str(lost), "SYNAPSE_VULKAN_ALLOW_SOFTWARE_DEVICE": "1"}
    with RunningHost(tmp_path / "home", environment) as host, host.client() as client:
        load_model(client, tiny, engine="vulkan", model_id="tiny")
        before = client.embed_query("tiny", "x").vectors.tobytes()
        lost.touch()
        with pytest.raises(EngineCrashed, match="VK_ERROR_DEVICE_LOST"):
            client.embed_query("tiny", "x")
        lost.unlink()
        assert client.embed_query("tiny", "x", retries=5).vectors.tobytes() == before
