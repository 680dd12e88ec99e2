"""A worker answers whatever it is sent: one reply to a request, one word and the end to anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.testing.workers.worker_conversations import HANDLERS, fuzz_worker

#: Half a million with ``make soak``.
FRAMES = 52_000
REACHED = 1_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_conversation_breaks_a_worker_and_none_of_its_handlers_is_left_out(tmp_path: Path) -> None:
    tally = fuzz_worker(tmp_path, FRAMES, seed=1)
    least = min((tally[name], name) for name in HANDLERS)
    print(f"{tally['frames']} frames in {tally['conversations']} conversations, reached least: {least}")
    assert {name: tally[name] for name in HANDLERS if tally[name] < REACHED} == {}
