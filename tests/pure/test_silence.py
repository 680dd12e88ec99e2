from __future__ import annotations

import pytest

from synapse_host.supervision.silence import SilenceWindows

LONG, SHORT = 600.0, 120.0


@pytest.mark.parametrize(
    ("operation", "window"),
    [
        ("load", LONG),
        ("admit", LONG),
        ("evict", LONG),
        ("unload", LONG),
        ("ping", SHORT),
        ("embed", SHORT),
        ("rerank", SHORT),
        ("generate", SHORT),
        ("an operation no one knows", SHORT),
    ],
)
@pytest.mark.parametrize("phase", ["setup", "inference", "control"])
def test_the_operation_decides_whatever_the_phase(operation: str, window: float, phase: str) -> None:
    assert SilenceWindows().window(operation, "owned-cpu", phase) == window


@pytest.mark.parametrize(("phase", "window"), [("setup", LONG), ("inference", SHORT)])
def test_cuda_has_minutes_to_prepare_its_input_only(phase: str, window: float) -> None:
    assert SilenceWindows().window("embed", "owned-cuda", phase) == window


def test_cuda_ping_is_no_inference() -> None:
    assert SilenceWindows().window("ping", "owned-cuda") == SHORT
