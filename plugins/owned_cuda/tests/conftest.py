"""The kernels' launcher for the CPU, compiled once: that takes longer than most tests that use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from synapse_owned_cuda.cpu_shim.launching import build_launcher


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs the kernels as they are."""
    return build_launcher(tmp_path_factory.mktemp("launcher"))
