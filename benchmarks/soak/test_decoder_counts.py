"""Twenty million frames against everything that reads bytes of a peer; every handler reached a thousand times."""

from __future__ import annotations

import multiprocessing
import time

import pytest

from synapse_host.testing.fuzz.decoder_fuzz import HANDLERS, Tally, fuzz_decoders

FRAMES = 20_000_000
REACHED = 1_000


@pytest.mark.timeout(7200)
def test_twenty_million_frames() -> None:
    processes = multiprocessing.cpu_count()
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        seeds = range(100, 100 + processes)
        tally = sum(pool.starmap(fuzz_decoders, [(FRAMES // processes, seed) for seed in seeds]), Tally())
    least = min((tally[name], name) for name in HANDLERS)
    print(f"{tally.total()} frames in {time.monotonic() - began:.0f} s, reached least: {least}")
    assert {name: tally[name] for name in HANDLERS if tally[name] < REACHED} == {}
