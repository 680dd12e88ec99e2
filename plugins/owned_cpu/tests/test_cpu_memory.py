"""Memory of a process that embeds: flat once every shape has been seen, and not many times the weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from synapse_owned_cpu import plugin

from synapse_host.testing.models.minilm import minilm_directory

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
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    warm, *later = json.loads(ran.stdout)
    assert max(later) - warm <= ALLOWED_GROWTH_MB, (warm, later)


#: Memory a small model adds over its file: 3.6 times measured, of which the file as it was read and the compiler's own
#: order of it are two and the rest is passing. With a copy in float32 beside them it was 7.5.
MOST_TIMES_THE_FILE = 5
LOADING_CHILD = """
import json, os, sys
from pathlib import Path
from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_qwen3 import TinyQwen3, write_qwen3
from synapse_owned_cpu import plugin

def rss_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

folder = Path(sys.argv[1])
write_qwen3(folder / "small", TinyQwen3(1, 32, 1, 2, 1, 16, 32, 97, 64, tied=True), "bf16")
write_qwen3(folder / "large", TinyQwen3(2, 640, 6, 10, 5, 64, 2048, 97, 64, tied=True), "bf16")
with loaded_model(plugin, folder / "small", dtype="bf16", max_tokens=64):
    pass
before = rss_mb()
with loaded_model(plugin, folder / "large", dtype="bf16", max_tokens=64) as model:
    plugin.synapse_embed(model, batch_of(seeded_rows([40], 97), "last"), ignore_progress)
    print(json.dumps([rss_mb() - before, os.path.getsize(folder / "large" / "model.safetensors") / 2**20]))
"""


@pytest.mark.skipif("bf16" not in plugin.synapse_describe().dtypes, reason="this processor does not compute in bf16")
def test_a_bfloat16_checkpoint_is_not_kept_in_float32(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADING_CHILD, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    taken, size = json.loads(ran.stdout)
    assert size > 50
    assert taken <= MOST_TIMES_THE_FILE * size, (taken, size)
