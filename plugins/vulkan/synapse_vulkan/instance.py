"""The Vulkan instance and the physical devices below it, read but not opened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from synapse_vulkan.binding import DeviceMemoryFull, VulkanFault, check, open_binding
from synapse_vulkan.device_facts import DeviceFacts, DeviceKind, Limits

_KINDS: dict[int, DeviceKind] = {1: "integrated", 2: "discrete", 3: "virtual", 4: "software"}
_APPLICATION = b"synapse-host"
#: The least ``maxMemoryAllocationSize`` a device may have.
_PROMISED_ALLOCATION = 2**30


def version_number(major: int, minor: int) -> int:
    """A version as Vulkan packs it (VK_MAKE_API_VERSION)."""
    return (major << 22) | (minor << 12)


def create_instance(layers: Sequence[str] = (), extensions: Sequence[str] = (), chain: Any = None) -> Any:
    """A new instance of Vulkan 1.1; raises ``VulkanFault`` where the loader refuses it."""
    vk = open_binding()
    ffi = vk.ffi
    name = ffi.new("char[]", _APPLICATION)
    about = ffi.new(
        "VkApplicationInfo*",
        {
            "sType": vk.VK_STRUCTURE_TYPE_APPLICATION_INFO,
            "pApplicationName": name,
            "apiVersion": version_number(1, 1),
        },
    )
    texts = [ffi.new("char[]", text.encode()) for text in (*layers, *extensions)]
    layer_names = ffi.new("char*[]", texts[: len(layers)])
    extension_names = ffi.new("char*[]", texts[len(layers) :])
    info = ffi.new(
        "VkInstanceCreateInfo*",
        {
            "sType": vk.VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
            "pNext": ffi.NULL if chain is None else chain,
            "pApplicationInfo": about,
            "enabledLayerCount": len(layers),
            "ppEnabledLayerNames": layer_names,
            "enabledExtensionCount": len(extensions),
            "ppEnabledExtensionNames": extension_names,
        },
    )
    made = ffi.new("VkInstance*")
    try:
        check(vk.lib.vkCreateInstance(info, ffi.NULL, made), "vkCreateInstance")
    except DeviceMemoryFull:
        # The loader's word for a manifest it cannot read; there is no device yet whose memory could be full.
        raise VulkanFault(
            "vkCreateInstance: VK_ERROR_OUT_OF_HOST_MEMORY, as where a driver's manifest is broken; look at those of "
            "VK_DRIVER_FILES and the system, which VK_LOADER_DEBUG=all makes the loader name"
        ) from None
    return made[0]


@contextmanager
def opened_instance() -> Iterator[Any]:
    """An instance for the length of a ``with``."""
    vk = open_binding()
    instance = create_instance()
    try:
        yield instance
    finally:
        vk.lib.vkDestroyInstance(instance, vk.ffi.NULL)


def physical_devices(instance: Any) -> list[Any]:
    """The handles of every device the loader knows, in its order."""
    vk = open_binding()
    count = vk.ffi.new("uint32_t*")
    check(vk.lib.vkEnumeratePhysicalDevices(instance, count, vk.ffi.NULL), "vkEnumeratePhysicalDevices")
    handles = vk.ffi.new("VkPhysicalDevice[]", count[0])
    check(vk.lib.vkEnumeratePhysicalDevices(instance, count, handles), "vkEnumeratePhysicalDevices")
    return [handles[place] for place in range(count[0])]


def read_facts(handle: Any) -> DeviceFacts:
    """What the floor and the choice look at, of one physical device."""
    vk = open_binding()
    properties = vk.ffi.new("VkPhysicalDeviceProperties*")
    vk.lib.vkGetPhysicalDeviceProperties(handle, properties)
    limits = properties.limits
    return DeviceFacts(
        name=vk.ffi.string(properties.deviceName).decode("utf-8", "replace"),
        kind=_KINDS.get(properties.deviceType, "other"),
        vendor_id=properties.vendorID,
        driver=_driver(handle, properties),
        api=(properties.apiVersion >> 22, (properties.apiVersion >> 12) & 0x3FF),
        computes=compute_family(handle) is not None,
        memory_mb=_largest_device_heap(handle) // 2**20,
        limits=Limits(
            invocations=limits.maxComputeWorkGroupInvocations,
            shared_bytes=limits.maxComputeSharedMemorySize,
            storage_bytes=limits.maxStorageBufferRange,
            push_bytes=limits.maxPushConstantsSize,
            storage_alignment=limits.minStorageBufferOffsetAlignment,
            groups=min(limits.maxComputeWorkGroupCount[axis] for axis in range(3)),
            texels=limits.maxTexelBufferElements,
            group_width=limits.maxComputeWorkGroupSize[0],
            storage_buffers=min(limits.maxPerStageDescriptorStorageBuffers, limits.maxDescriptorSetStorageBuffers),
            allocation_bytes=_largest_allocation(handle, properties.apiVersion),
        ),
    )


def _largest_allocation(handle: Any, api: int) -> int:
    """Bytes of the largest allocation; what the specification promises where the device is too old to be asked."""
    if api < version_number(1, 1):
        return _PROMISED_ALLOCATION
    vk = open_binding()
    about = vk.ffi.new(
        "VkPhysicalDeviceMaintenance3Properties*",
        {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES},
    )
    asked = vk.ffi.new(
        "VkPhysicalDeviceProperties2*", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, "pNext": about}
    )
    vk.lib.vkGetPhysicalDeviceProperties2(handle, asked)
    return int(about.maxMemoryAllocationSize)


def _driver(handle: Any, properties: Any) -> str:
    """The driver as it names itself, and its version number where the device is too old to be asked for a name."""
    vk = open_binding()
    number = f"{properties.driverVersion:#x}"
    if properties.apiVersion < version_number(1, 2):
        return number
    about = vk.ffi.new(
        "VkPhysicalDeviceDriverProperties*", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES}
    )
    asked = vk.ffi.new(
        "VkPhysicalDeviceProperties2*", {"sType": vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, "pNext": about}
    )
    vk.lib.vkGetPhysicalDeviceProperties2(handle, asked)
    words = [vk.ffi.string(text).decode("utf-8", "replace") for text in (about.driverName, about.driverInfo)]
    return " ".join(filter(None, words)) or number


def compute_family(handle: Any) -> int | None:
    """The first family of queues that computes; None where there is none."""
    vk = open_binding()
    count = vk.ffi.new("uint32_t*")
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, vk.ffi.NULL)
    families = vk.ffi.new("VkQueueFamilyProperties[]", count[0])
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(handle, count, families)
    for place in range(count[0]):
        if families[place].queueFlags & vk.VK_QUEUE_COMPUTE_BIT:
            return place
    return None


def _largest_device_heap(handle: Any) -> int:
    vk = open_binding()
    memory = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    heaps = [memory.memoryHeaps[place] for place in range(memory.memoryHeapCount)]
    return max((heap.size for heap in heaps if heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), default=0)
