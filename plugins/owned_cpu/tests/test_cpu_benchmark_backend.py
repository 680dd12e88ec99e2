"""The backend by which benchmarks record batches keeps the plugin contract, whatever tasks the cpu backend gains."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from synapse_host.backends.capability import probe_backend
from synapse_host.backends.discovery import list_backends
from synapse_host.testing.fake_distributions import install_backend

SOURCE = Path(__file__).parents[3] / "benchmarks" / "recording_backend.py"


@pytest.mark.anyio
async def test_the_recording_backend_can_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_backend(site, "cpu-recorded", SOURCE.read_text("utf-8"))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
    entry = next(found for found in list_backends() if found.name == "cpu-recorded")
    row = await probe_backend(entry, cache_dir=tmp_path / "cache")
    assert (row.runnable, row.message) == (True, None)
