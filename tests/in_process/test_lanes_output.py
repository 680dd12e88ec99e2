"""What ``synapse-opctl lanes status`` shows of a pause and of the Neural Engine's shapes."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.cli.admission_rendering import show_lanes

RUNNING: dict[str, Any] = {"phase": "running", "hardware_free": False, "lane_ids": []}
RESIDENCY: dict[str, Any] = {
    "worker_pid": 42,
    "executables": 44,
    "max_executables": 100,
    "shapes": [
        {"lane_id": "gte", "shape": 128, "state": "resident", "executables": 22, "leases": 3},
        {"lane_id": "gte", "shape": 512, "state": "compiling", "executables": 22, "leases": 0},
    ],
    "compilations": [
        {"lane_id": "gte", "shape": 128, "took_ms": 12_000},
        {"lane_id": "gte", "shape": 8192, "took_ms": 90, "error": "ane_resources_exhausted"},
    ],
}


def test_without_a_model_there_is_only_the_pause(capfd: pytest.CaptureFixture[str]) -> None:
    show_lanes(RUNNING)
    assert capfd.readouterr().out == "running: no pause\n"


def test_shapes_have_a_row_and_compilations_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    show_lanes({**RUNNING, "residency": RESIDENCY})
    shown = capfd.readouterr().out
    assert "worker 42: 44 of 100 executables taken" in shown
    assert "compiling" in shown
    assert "gte, 128 tokens: compiled in 12000 ms" in shown
    assert "gte, 8192 tokens: failed with ane_resources_exhausted in 90 ms" in shown


def test_a_worker_that_is_gone_is_said_to_be(capfd: pytest.CaptureFixture[str]) -> None:
    show_lanes({**RUNNING, "residency": {**RESIDENCY, "worker_pid": None, "shapes": [], "executables": 0}})
    assert "no worker: 0 of 100 executables taken" in capfd.readouterr().out
