"""A few random kills of a host that downloads, removes and collects, in every run; the long count is the soak's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from synapse_host.testing.crashes.download_kills import killed_while_downloading

KILLS = 5


@pytest.mark.slow
def test_a_host_killed_at_random_leaves_order(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    print(killed_while_downloading(tmp_path, KILLS, seed))
