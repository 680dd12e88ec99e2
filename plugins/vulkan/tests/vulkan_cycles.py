"""Loads, embeds and unloads a tiny model again and again, and prints what grew as one JSON object.

``python vulkan_cycles.py COUNT``: ``rss_mb`` after a tenth of the cycles and at the end, the least and most bytes that
stayed ``allocated`` on the device between two cycles, and ``handles`` made less those destroyed, by kind.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from synapse_vulkan import plugin
from synapse_vulkan.opening import open_runtime

from synapse_host.testing.engine_runs import batch_of, ignore_progress, loaded_model, seeded_rows
from synapse_host.testing.models.tiny_models import TinyBert, write_model

TINY = TinyBert(seed=5, hidden=32, layers=2, heads=4, intermediate=64, vocab=120, positions=64)


def rss_mb() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20


def count_handles(device: Any) -> Counter[str]:
    """What is made on ``device`` from now on less what is destroyed, by kind; pipelines live as long as the device."""
    alive: Counter[str] = Counter()
    create, destroy = device._create, device.destroy

    def counted_create(kind: str, fields: dict[str, Any]) -> Any:
        alive[kind] += 1
        return create(kind, fields)

    def counted_destroy(kind: str, handle: Any) -> None:
        alive[kind] -= 1
        destroy(kind, handle)

    free = device.free

    def counted_free(buffer: Any) -> None:
        alive["Buffer"] -= 1
        free(buffer)

    device._create, device.destroy, device.free = counted_create, counted_destroy, counted_free
    device.create = counted_create
    return alive


def cycle(folder: Path) -> None:
    """One life of a model."""
    with loaded_model(plugin, folder, max_tokens=64, settings={"allow_software_device": "true"}) as model:
        plugin.synapse_embed(model, batch_of(seeded_rows([3, 20, 40], 97)), ignore_progress)


def main(count: int) -> None:
    """Run the cycles."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, TINY)
        cycle(folder)
        device = open_runtime().device
        alive, allocated, sizes = count_handles(device), set(), []
        for number in range(count):
            cycle(folder)
            allocated.add(device.allocated)
            if number == count // 10:
                gc.collect()
                sizes.append(rss_mb())
        sizes.append(rss_mb())
    facts = {"rss_mb": sizes, "allocated": [min(allocated), max(allocated)], "handles": dict(alive)}
    sys.stdout.write(json.dumps(facts) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
