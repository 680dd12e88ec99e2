"""Repeating the same work needs no more memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from synapse_host.testing.conformance.bench import Bench
from synapse_host.testing.conformance.life_cycle import the_file_is_let_go
from synapse_host.testing.conformance.premises import MANY, PLAIN_LENGTH, a_row_is_served
from synapse_host.testing.conformance.sessions import Session

_MIB = 1 << 20
#: Growth that allocators may show without anything being kept, in bytes.
ALLOWED_GROWTH = 8 * _MIB
WARM_UP_BATCHES, BATCHES = 10, 60
WARM_UP_LOADS, LOADS = 3, 8


class Memory:
    """Resident memory and descriptors of the worker."""

    def test_embedding_again_needs_no_more_memory(self, conformance_bench: Bench) -> None:
        conformance_bench.assume(a_row_is_served)
        served, rows = conformance_bench.shared(), conformance_bench.rows_of([PLAIN_LENGTH] * MANY)
        for _ in range(WARM_UP_BATCHES):
            served.embed(rows)
        before = _resident(served.session)
        for _ in range(BATCHES):
            served.embed(rows)
        grown = _resident(served.session) - before
        assert grown <= ALLOWED_GROWTH, f"{BATCHES} equal batches of {MANY} rows took {grown // _MIB} MiB for good"

    def test_loading_again_needs_no_more_memory(self, conformance_bench: Bench) -> None:
        """A backend that keeps the weights, or a copy of them, grows by their size each time."""
        conformance_bench.assume(a_row_is_served, the_file_is_let_go)
        served, rows = conformance_bench.spare(), conformance_bench.rows_of([PLAIN_LENGTH])
        for _ in range(WARM_UP_LOADS):
            served.reload()
            served.embed(rows)
        before, opened = _resident(served.session), _open_descriptors(served.session)
        for _ in range(LOADS):
            served.reload()
            served.embed(rows)
        grown = _resident(served.session) - before
        size = conformance_bench.model.artifact.stat().st_size
        assert grown <= max(ALLOWED_GROWTH, LOADS * size // 2), (
            f"{LOADS} loads of a model of {size / _MIB:.1f} MiB took {grown // _MIB} MiB for good"
        )
        assert _open_descriptors(served.session) <= opened, "descriptors stay open after an unload"


def _resident(session: Session) -> int:
    if sys.platform == "linux":
        return int(Path(f"/proc/{session.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return session.ping().rss_mb * _MIB


def _open_descriptors(session: Session) -> int:
    return len(list(Path(f"/proc/{session.pid}/fd").iterdir())) if sys.platform == "linux" else 0
