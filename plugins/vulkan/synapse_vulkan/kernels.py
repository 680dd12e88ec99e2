"""Pipelines of the compiled kernels, made when first asked for and kept for as long as the device."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from synapse_vulkan.binding import check
from synapse_vulkan.device import Device
from synapse_vulkan.device_facts import ALIGNMENT

#: Storage buffers of the one descriptor layout all kernels share.
STORAGE_BINDINGS = 6
#: Texel buffers beside them, at the bindings after.
TEXEL_BINDINGS = 2
#: Bytes of push constants, the least any device has.
PUSH_BYTES = 128
#: VK_PIPELINE_CREATE_DISPATCH_BASE_BIT, which the declarations leave out: a dispatch may start at any group.
_DISPATCH_BASE = 0x10


class Kernels:
    """The pipelines of one device, by kernel and specialisation constants; ``code`` is the SPIR-V of every kernel."""

    def __init__(self, device: Device, code: Mapping[str, bytes]) -> None:
        self._device = device
        self._code = code
        vk = device.vk
        self.set_layout = self._set_layout()
        ranges = device.ffi.new("VkPushConstantRange*", [vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, PUSH_BYTES])
        layouts = device.ffi.new("VkDescriptorSetLayout[]", [self.set_layout])
        fields = {
            "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
            "setLayoutCount": 1,
            "pSetLayouts": layouts,
            "pushConstantRangeCount": 1,
            "pPushConstantRanges": ranges,
        }
        self.layout = device.create("PipelineLayout", fields)
        #: What is bound where a kernel has a texel buffer and a step none: every binding must hold something.
        self._blank = device.device_buffer(ALIGNMENT)
        self.blank_texels = device.texel_view(self._blank, 0, ALIGNMENT)
        self._modules: dict[str, Any] = {}
        self._pipelines: dict[tuple[str, tuple[int, ...]], Any] = {}

    def pipeline(self, kernel: str, constants: Sequence[int] = ()) -> Any:
        """The pipeline of ``kernel`` with its specialisation constants 0, 1, …; raises ``VulkanFault``."""
        key = (kernel, tuple(constants))
        if key not in self._pipelines:
            self._pipelines[key] = self._create(kernel, key[1])
        return self._pipelines[key]

    def close(self) -> None:
        """Destroy everything; no command that uses it may be pending."""
        for pipeline in self._pipelines.values():
            self._device.destroy("Pipeline", pipeline)
        for module in self._modules.values():
            self._device.destroy("ShaderModule", module)
        self._pipelines.clear()
        self._modules.clear()
        self._device.destroy("BufferView", self.blank_texels)
        self._device.free(self._blank)
        self._device.destroy("PipelineLayout", self.layout)
        self._device.destroy("DescriptorSetLayout", self.set_layout)

    def __len__(self) -> int:
        return len(self._pipelines)

    def _set_layout(self) -> Any:
        vk = self._device.vk
        kinds = [vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER] * STORAGE_BINDINGS
        kinds += [vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER] * TEXEL_BINDINGS
        bindings = self._device.ffi.new(
            "VkDescriptorSetLayoutBinding[]",
            [
                {
                    "binding": place,
                    "descriptorType": kind,
                    "descriptorCount": 1,
                    "stageFlags": vk.VK_SHADER_STAGE_COMPUTE_BIT,
                }
                for place, kind in enumerate(kinds)
            ],
        )
        fields: Mapping[str, Any] = {
            "sType": vk.VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
            "bindingCount": len(kinds),
            "pBindings": bindings,
        }
        return self._device.create("DescriptorSetLayout", dict(fields))

    def _module(self, kernel: str) -> Any:
        if kernel not in self._modules:
            code = self._code[kernel]
            held = self._device.ffi.new("uint32_t[]", struct.unpack(f"<{len(code) // 4}I", code))
            fields = {
                "sType": self._device.vk.VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                "codeSize": len(code),
                "pCode": held,
            }
            self._modules[kernel] = self._device.create("ShaderModule", fields)
        return self._modules[kernel]

    def _create(self, kernel: str, constants: tuple[int, ...]) -> Any:
        device, vk, ffi = self._device, self._device.vk, self._device.ffi
        data = ffi.new("int32_t[]", list(constants) or [0])
        entries = ffi.new("VkSpecializationMapEntry[]", [[place, 4 * place, 4] for place in range(len(constants))])
        special = ffi.new(
            "VkSpecializationInfo*",
            {
                "mapEntryCount": len(constants),
                "pMapEntries": entries,
                "dataSize": 4 * len(constants),
                "pData": ffi.cast("void*", data),
            },
        )
        entry = ffi.new("char[]", b"main")
        stage = {
            "sType": vk.VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
            "stage": vk.VK_SHADER_STAGE_COMPUTE_BIT,
            "module": self._module(kernel),
            "pName": entry,
            "pSpecializationInfo": special,
        }
        info = ffi.new(
            "VkComputePipelineCreateInfo*",
            {
                "sType": vk.VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                "flags": _DISPATCH_BASE,
                "stage": stage,
                "layout": self.layout,
            },
        )
        made = ffi.new("VkPipeline*")
        result = device.lib.vkCreateComputePipelines(device.handle, ffi.NULL, 1, info, ffi.NULL, made)
        check(
            result,
            f"kernel {kernel!r} with constants {constants} does not compile on {device.facts.name!r}, driver "
            f"{device.facts.driver!r}: vkCreateComputePipelines",
        )
        return made[0]
