"""The backend conformance suite over the Metal backend, on MLX's CPU device."""

from __future__ import annotations

from synapse_host.testing.conformance.suite import ConformanceSuite

CPU = {"allow_cpu": "true"}


class TestMetal(ConformanceSuite):
    backend = "metal"
    settings = CPU


class TestMetalDecode(ConformanceSuite):
    """What the suite knows of a backend without vectors: how it describes itself and lives."""

    backend = "metal-decode"
    settings = CPU
