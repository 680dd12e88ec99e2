"""The backend conformance suite over the built-in backend ``reference``."""

from __future__ import annotations

from synapse_host.testing.conformance.suite import ConformanceSuite


class TestReference(ConformanceSuite):
    backend = "reference"
