"""Memory of a process that embeds stays flat once every shape has been seen."""

from __future__ import annotations

import json
import subprocess
import sys

from synapse_host.testing.minilm import minilm_directory

#: A graph keeps a plan for each (rows, bucket); memory that grows with batches would pass this.
ALLOWED_GROWTH_MB = 6
CHILD = """
import gc, json, random, sys
from pathlib import Path
import numpy as np
from synapse_host.owned_engine.shape_policy import ROW_COUNTS, BucketLadder
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model
from synapse_owned_cpu import plugin

def rss_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20

def embed(model, lengths):
    rows = [np.full(length, 2000 + length, np.int32) for length in lengths]
    plugin.synapse_embed(model, batch_of(rows), ignore_progress)

ladder = BucketLadder(512)
mixed = random.Random(1)
dtype = plugin.synapse_describe().dtypes[0]
with loaded_model(plugin, Path(sys.argv[1]), dtype=dtype) as model:
    for bucket in ladder.buckets():
        for rows in ROW_COUNTS:
            if rows <= ladder.rows_per_call(bucket):
                embed(model, [bucket] * rows)
    sizes = [rss_mb()]
    for _ in range(4):
        for _ in range(40):
            embed(model, [min(512, int(mixed.expovariate(1 / 40)) + 1) for _ in range(mixed.randint(1, 12))])
        sizes.append(rss_mb())
print(json.dumps(sizes))
"""


def test_resident_memory_is_flat_after_every_shape_was_seen() -> None:
    command = [sys.executable, "-c", CHILD, str(minilm_directory())]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    warm, *later = json.loads(ran.stdout)
    assert max(later) - warm <= ALLOWED_GROWTH_MB, (warm, later)
