from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "synapse_host.server.listener",
        "synapse_host.client.async_client",
        "synapse_host.client.blocking_client",
    ],
)
def test_importing_costs_no_heavy_library(module: str) -> None:
    heavy = ("numpy", "rich", "typer", "sqlmodel", "tokenizers", "openvino", "http.client")
    script = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert finished.stdout.strip() == "[]"
