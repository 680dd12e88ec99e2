"""Tests that run kernels need a Vulkan device; without one they are skipped, unless the run says it must be there."""

from __future__ import annotations

import os

import pytest
from synapse_vulkan.evidence import read_machine


@pytest.fixture(scope="session")
def vulkan_device() -> str:
    """The name of the device the tests run on."""
    machine = read_machine()
    if machine.chosen is not None:
        return machine.chosen.name
    problem = f"no Vulkan device ({machine.missing or 'the loader knows none'}); scripts/vulkan_device.sh installs one"
    if "vulkan" in os.environ.get("SYNAPSE_TEST_REQUIRE", "").split(","):
        pytest.fail(problem)
    pytest.skip(problem)
