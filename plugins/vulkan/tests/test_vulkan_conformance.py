"""The backend conformance suite over the Vulkan backend."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from synapse_host.testing.conformance.suite import ConformanceSuite


@pytest.mark.usefixtures("vulkan_device")
class TestVulkan(ConformanceSuite):
    backend = "vulkan"
    settings = MappingProxyType({"allow_software_device": "true"})
