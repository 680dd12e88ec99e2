"""The conformance suite over this backend: run ``pytest`` in this folder, with the package installed."""

from __future__ import annotations

from synapse_host.testing.conformance.suite import ConformanceSuite


class TestExampleStatic(ConformanceSuite):
    """Every promise of a backend, held against this one in a real worker."""

    backend = "example-static"
