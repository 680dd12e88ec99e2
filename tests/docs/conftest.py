from __future__ import annotations

from collections.abc import Iterator

import pytest

from synapse_host.testing.documented_pages import PageRun, run_page
from synapse_host.testing.running_host import RunningHost

TUTORIAL = "docs/tutorial/first-embedding.md"


@pytest.fixture(scope="session")
def documented_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    """A fresh host, as a reader of the tutorial starts it, but that alias administration is on."""
    with RunningHost(tmp_path_factory.mktemp("home"), {"SYNAPSE_ALIASES_ADMIN_ENABLED": "true"}) as running:
        yield running


@pytest.fixture(scope="session")
def tutorial(documented_host: RunningHost, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """What became of the tutorial; it leaves the model ``minilm`` certified, which the other pages ask for."""
    return run_page(TUTORIAL, documented_host, tmp_path_factory.mktemp("tutorial"))
