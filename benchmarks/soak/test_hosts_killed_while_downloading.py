"""kill -9 of a real host at random moments of downloading and removing: what is installed after each is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from synapse_host.testing.crashes.download_kills import killed_while_downloading

KILLS = 40


@pytest.mark.timeout(1800)
def test_a_host_killed_at_random_leaves_order(tmp_path: Path) -> None:
    print(killed_while_downloading(tmp_path, KILLS, seed=5))
