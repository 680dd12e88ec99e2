from __future__ import annotations

from typing import Any

import pytest

from synapse_host.worker.progress_sender import LEAST_INTERVAL_S, ProgressSender
from synapse_host.worker_protocol.faults import ProtocolFault
from synapse_host.worker_protocol.messages import REQUESTS, Message, ProgressReport
from synapse_host.worker_protocol.progress import ProgressRule

CONTROL = {"ANE_ADMIT_SHAPE", "ANE_EVICT_SHAPE", "PACKED_ADMIT", "PACKED_EVICT", "UNLOAD"}


def _accept(operation: str, *reports: tuple[int, Any]) -> None:
    rule = ProgressRule("r-1", operation)
    for completed, phase in reports:
        rule.accept(ProgressReport("r-1", completed, phase))


def test_growing_counters_are_lawful() -> None:
    _accept("embed", (1, "setup"), (2, "setup"), (9, "inference"), (10, "inference"))
    _accept("unload", (1, "control"), (2, "control"))


@pytest.mark.parametrize("second", [4, 5])
def test_a_counter_must_grow(second: int) -> None:
    with pytest.raises(ProtocolFault, match=rf"completed {second} after 5"):
        _accept("embed", (5, "inference"), (second, "inference"))


def test_zero_is_no_completed_work() -> None:
    with pytest.raises(ProtocolFault, match="completed 0 after 0"):
        _accept("embed", (0, "setup"))


def test_setup_never_follows_inference() -> None:
    with pytest.raises(ProtocolFault, match="went back"):
        _accept("load", (1, "inference"), (2, "setup"))


@pytest.mark.parametrize("wire_type", REQUESTS)
@pytest.mark.parametrize("phase", ["setup", "inference", "control"])
def test_control_belongs_to_unloading_admission_and_eviction_alone(wire_type: str, phase: str) -> None:
    operation = REQUESTS[wire_type].OPERATION
    if (phase == "control") == (wire_type in CONTROL):
        _accept(operation, (1, phase))
    else:
        with pytest.raises(ProtocolFault, match=f"'{phase}'.*'{operation}'"):
            _accept(operation, (1, phase))


def test_another_requests_progress_is_refused() -> None:
    with pytest.raises(ProtocolFault, match=r"'r-0'.*'r-1'"):
        ProgressRule("r-1", "embed").accept(ProgressReport("r-0", 1, "inference"))


def test_a_refused_report_changes_nothing() -> None:
    rule = ProgressRule("r-1", "embed")
    rule.accept(ProgressReport("r-1", 3, "inference"))
    with pytest.raises(ProtocolFault):
        rule.accept(ProgressReport("r-1", 9, "setup"))
    rule.accept(ProgressReport("r-1", 4, "inference"))


def test_the_worker_sends_at_a_bounded_rate() -> None:
    now = 100.0
    sent: list[Message] = []
    progress = ProgressSender(sent.append, "r-1", "embed", clock=lambda: now)
    progress(1, "inference")
    now += 2 * LEAST_INTERVAL_S
    progress(2, "inference")
    progress(3, "inference")
    now += 2 * LEAST_INTERVAL_S
    progress(4, "inference", [7, 8])
    assert sent == [ProgressReport("r-1", 2, "inference"), ProgressReport("r-1", 4, "inference")]


def test_unlawful_progress_is_refused_in_the_worker_even_when_it_would_not_be_sent() -> None:
    progress = ProgressSender(lambda _: None, "r-1", "embed", clock=lambda: 0.0)
    progress(2, "inference")
    with pytest.raises(ProtocolFault):
        progress(2, "inference")
    with pytest.raises(ProtocolFault, match=r"phase 'inferring'.* setup and inference"):
        progress(3, "inferring")  # type: ignore[arg-type]
