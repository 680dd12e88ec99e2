"""A job of a million items, every kind of step of jobs died at, and a host killed at random while it works."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from synapse_host.testing.crashes.host_kills import killed_at_random

FEW, MANY = 100_000, 1_000_000
#: Bars of the design: growth from the few to the many, speed of every tenth, and reading at the end.
MOST_GROWTH_MIB, LEAST_ITEMS_PER_S, MOST_SLOPE, MOST_PAGE_MS = 32, 30_000, 0.8, 8
DEATHS_OF_A_STEP = 5
KILLS = 40


def _run(*arguments: str) -> dict[str, Any]:
    ran = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


@pytest.mark.timeout(3600)
def test_a_million_items(tmp_path: Path) -> None:
    seen = []
    for items in (FEW, MANY):
        (folder := tmp_path / str(items)).mkdir()
        seen.append(_run("synapse_host.testing.job_load", str(folder), str(items)))
        print(seen[-1])
    few, many = seen
    assert many["peak_rss_mib"] <= few["peak_rss_mib"] + MOST_GROWTH_MIB
    assert many["items_per_s"] >= LEAST_ITEMS_PER_S
    assert sum(many["tenths"][-3:]) >= MOST_SLOPE * sum(many["tenths"][:3])
    assert many["page_p95_ms"] <= MOST_PAGE_MS


@pytest.mark.timeout(3600)
def test_every_kind_of_step(tmp_path: Path) -> None:
    deaths = _run("synapse_host.testing.crashes.job_crashes", str(tmp_path), str(DEATHS_OF_A_STEP), "all")
    print(f"{len(deaths)} kinds of steps, {sum(deaths.values())} deaths")
    assert len(deaths) > 100
    assert min(deaths.values()) >= DEATHS_OF_A_STEP - 1


@pytest.mark.timeout(3600)
def test_a_host_killed_at_random(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}: {killed_at_random(tmp_path, KILLS, seed)}")
