"""A million frames through live sockets, every handler reached a thousand times, and memory that stays."""

from __future__ import annotations

import resource
from pathlib import Path

import anyio
import pytest

from synapse_host.testing import client_conversations
from synapse_host.testing.fake_methods import echo_method, embedding_methods
from synapse_host.testing.fuzz import exchange_fuzz
from synapse_host.testing.in_process_host import in_process_host
from synapse_host.testing.workers import worker_conversations

REACHED = 1_000
#: Frames of one round; the first is the warm-up, and memory is looked at after each.
EXCHANGED, ASKED = 60_000, 40_000
ROUNDS = 8
WORKER_FRAMES = 520_000
#: MiB that this process, which holds the host and its peers, may grow after the first round.
ALLOWED_GROWTH_MIB = 8


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_the_host_between_its_peers(tmp_path: Path) -> None:
    exchanged, asked, memory = exchange_fuzz.Tally(), client_conversations.Tally(), []

    async def run() -> None:
        async with in_process_host(tmp_path, [echo_method(), *embedding_methods()]) as host:
            for seed in range(ROUNDS):
                exchanged.update(await exchange_fuzz.fuzz_exchanges(EXCHANGED, seed))
                asked.update(await client_conversations.fuzz_host(host.socket, ASKED, seed))
                memory.append(resident_mib())

    anyio.run(run)
    print(f"{exchanged['frames']} frames of workers, {asked['frames']} of clients; MiB after each round: {memory}")
    for tally, handlers in ((exchanged, exchange_fuzz.HANDLERS), (asked, client_conversations.HANDLERS)):
        assert {name: tally[name] for name in handlers if tally[name] < REACHED} == {}
    assert memory[-1] - memory[0] < ALLOWED_GROWTH_MIB


@pytest.mark.timeout(7200)
def test_the_worker_before_its_host(tmp_path: Path) -> None:
    tally = worker_conversations.fuzz_worker(tmp_path, WORKER_FRAMES, seed=1)
    least = min((tally[name], name) for name in worker_conversations.HANDLERS)
    print(f"{tally['frames']} frames in {tally['conversations']} conversations, reached least: {least}")
    assert least[0] >= REACHED
