"""A few random kills of a whole host in every run; the long count is the soak's."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from synapse_host.testing.crashes.host_kills import killed_at_random

KILLS = 3


@pytest.mark.slow
def test_random_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    print(killed_at_random(tmp_path, KILLS, seed))
