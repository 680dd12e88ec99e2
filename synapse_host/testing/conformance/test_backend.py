"""``pytest --pyargs synapse_host.testing.conformance --backend NAME``: the suite over the backend of that name."""

from __future__ import annotations

from synapse_host.testing.conformance.suite import ConformanceSuite


class TestBackend(ConformanceSuite):
    """The backend of the command line; see the options of ``synapse_host.testing.pytest_plugin``."""
