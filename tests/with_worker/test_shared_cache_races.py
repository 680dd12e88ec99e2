"""Several processes in one cache at once: nothing goes under a pin, a lease or a claim, and in the end all of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from synapse_host.cache.blob_cache import BlobCache

HOSTS = ("a", "b", "c")
STEPS = 400


def test_hosts_that_share_a_cache_take_nothing_from_each_other(tmp_path: Path) -> None:
    seed, root = random.randrange(1 << 32), tmp_path / "models"
    print(f"seed {seed}")
    command = [sys.executable, "-m", "synapse_host.testing.crashes.cache_races", str(root)]
    running = [
        subprocess.Popen(
            [*command, host, str(seed), str(STEPS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for host in HOSTS
    ]
    done: Counter[str] = Counter()
    for process in running:
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
        done.update(json.loads(output))
    print(dict(done))
    assert min(done[deed] for deed in ("bring", "read", "make", "collect", "let_go")) >= 10
    cache = BlobCache.open(root, "last")
    for now_ms in (1, 2):
        cache.collect(now_ms=(1 << 50) + now_ms, grace_ms=0)
    for folder in (cache.layout.blobs, cache.layout.metadata, cache.layout.incoming, cache.layout.derived):
        assert list(folder.iterdir()) == []
