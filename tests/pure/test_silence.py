"""The table of reading 11, whole: operation x engine x phase."""

from __future__ import annotations

from itertools import product

import pytest

from synapse_host.supervision.silence import SilenceWindows
from synapse_host.worker_protocol.messages import REQUESTS

LONG, SHORT = 600.0, 120.0
OPERATIONS = {
    "LOAD": LONG,
    "EMBED_BATCH": SHORT,
    "RERANK": SHORT,
    "RERANK_SEQUENCES": SHORT,
    "GENERATE": SHORT,
    "ANE_ADMIT_SHAPE": LONG,
    "ANE_EVICT_SHAPE": LONG,
    "PACKED_ADMIT": LONG,
    "PACKED_EVICT": LONG,
    "SELF_CHECK": SHORT,
    "UNLOAD": LONG,
    "PING": SHORT,
}
ENGINES = ["owned-cpu", "owned-metal", "owned-cuda", "owned-vulkan", "ane-direct-worker", "llama.cpp-worker", "theirs"]
PHASES = ["setup", "inference", "control"]
INFERENCE = {"EMBED_BATCH", "RERANK", "RERANK_SEQUENCES", "GENERATE", "SELF_CHECK"}


def expected(wire_type: str, engine: str, phase: str) -> float:
    prepares_input = (engine, phase) == ("owned-cuda", "setup") and wire_type in INFERENCE
    return LONG if prepares_input else OPERATIONS[wire_type]


@pytest.mark.parametrize(("wire_type", "engine"), [*product(OPERATIONS, ENGINES)])
def test_only_the_table_decides(wire_type: str, engine: str) -> None:
    operation = REQUESTS[wire_type].OPERATION
    windows = {phase: SilenceWindows().window(operation, engine, phase) for phase in PHASES}
    assert windows == {phase: expected(wire_type, engine, phase) for phase in PHASES}


def test_every_request_with_a_reply_is_in_the_table() -> None:
    assert set(OPERATIONS) == set(REQUESTS) - {"SHUTDOWN"}


def test_a_request_begins_in_setup() -> None:
    assert SilenceWindows().window("embed", "owned-cuda") == LONG
    assert SilenceWindows().window("embed", "owned-cpu") == SHORT


def test_an_operation_no_one_knows_gets_the_short_window() -> None:
    assert SilenceWindows().window("contemplate", "owned-cuda", "inference") == SHORT
