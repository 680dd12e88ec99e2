"""The backend conformance suite over the llama backend."""

from __future__ import annotations

from synapse_host.testing.conformance.suite import ConformanceSuite


class TestLlama(ConformanceSuite):
    backend = "llama"
