"""Ten thousand embeddings of every length: the same bits for the same text at the end, and memory that stays."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest

from synapse_host.testing.models.minilm import minilm_directory
from synapse_host.testing.running_host import RunningHost, load_model
from synapse_host.testing.workers.worker_processes import worker_pids

REQUESTS = 10_000
WARM_UP = 2_000
#: MiB a process may grow between the end of the warm-up and the end of the run.
ALLOWED_GROWTH_MIB = 12
WORDS = ("river", "stone", "a", "of", "the", "turning", "wheel", "under", "light")


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_ten_thousand_mixed_requests(tmp_path: Path) -> None:
    draw = random.Random(1)
    with RunningHost(tmp_path) as host, host.client() as client:
        load_model(client, minilm_directory(), engine="cpu", model_id="minilm")
        before = client.embed_query("minilm", "a text to come back to").vectors
        settled: dict[int, float] = {}
        for number in range(REQUESTS):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 300))) for _ in range(draw.randint(1, 4))]
            client.embed_batch("minilm", texts)
            if number == WARM_UP:
                settled = {pid: resident_mib(pid) for pid in (host.process.pid, *worker_pids(host.process.pid))}
        np.testing.assert_array_equal(client.embed_query("minilm", "a text to come back to").vectors, before)
        grown = {pid: resident_mib(pid) - at for pid, at in settled.items()}
        print(f"requests {REQUESTS}, growth in MiB after {WARM_UP}: {grown}, cores {os.cpu_count()}")
        assert len(settled) == 2
        assert max(grown.values()) < ALLOWED_GROWTH_MIB
