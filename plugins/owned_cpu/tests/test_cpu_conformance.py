"""The backend conformance suite over the CPU backend, once for each activation type this machine computes in."""

from __future__ import annotations

import pytest
from synapse_owned_cpu import plugin

from synapse_host.testing.conformance.suite import ConformanceSuite

DTYPES = plugin.synapse_describe().dtypes


class TestCpuInFloat32(ConformanceSuite):
    backend = "cpu"
    dtype = "f32"


@pytest.mark.skipif("bf16" not in DTYPES, reason="this processor does not compute in bf16")
class TestCpuInBfloat16(ConformanceSuite):
    backend = "cpu"
    dtype = "bf16"
