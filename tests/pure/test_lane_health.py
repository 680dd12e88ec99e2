from __future__ import annotations

from dataclasses import replace

import pytest

from synapse_host.lanes.lane_health import LaneHealth, Pulse, grown_too_large, health_summary

IDLE = LaneHealth("a", "unloaded", "cpu", "cpu", strikes=0, quarantined=False, rows_computed=0, recycled=0)
BUSY = replace(IDLE, model_id="b", state="ready", worker_pid=7, dims=4, pulse=Pulse(10.0, 90, 80, 1))


def test_a_row_tells_what_the_worker_said_and_how_long_ago() -> None:
    row = BUSY.to_wire(now=12.5)
    assert (row["rss_mib"], row["last_ping_age_ms"], row["worker_pid"], row["dims"]) == (90, 2500, 7, 4)
    assert row["placement_share"] is None


def test_a_row_of_a_lane_without_a_worker_says_nothing_of_one() -> None:
    row = IDLE.to_wire(now=12.5)
    assert [row[name] for name in ("worker_pid", "rss_mib", "last_ping_age_ms", "dims")] == [None] * 4
    assert set(row) == set(BUSY.to_wire(now=0))


def test_nothing_tracked_is_healthy() -> None:
    assert health_summary([]) == {
        "worker_connected": False,
        "tracked_models": 0,
        "loaded_worker_models": 0,
        "crash_count_window": 0,
        "quarantined_models": [],
        "degraded": False,
    }


def test_the_summary_counts_lanes_strikes_and_the_lowest_share() -> None:
    placed = [replace(BUSY, pulse=Pulse(0.0, 1, 1, 1, share)) for share in (0.9, 0.75)]
    struck = replace(IDLE, strikes=1)
    found = health_summary([IDLE, *placed, struck])
    assert (found["worker_connected"], found["tracked_models"], found["loaded_worker_models"]) == (True, 4, 2)
    assert (found["crash_count_window"], found["placement_share"], found["degraded"]) == (1, 0.75, False)


@pytest.mark.parametrize("bad", [replace(IDLE, state="failed"), replace(IDLE, strikes=2, quarantined=True)])
def test_a_failed_or_quarantined_lane_degrades_the_host(bad: LaneHealth) -> None:
    found = health_summary([BUSY, bad])
    assert found["degraded"]
    assert found["quarantined_models"] == (["a"] if bad.quarantined else [])


@pytest.mark.parametrize(
    ("rss", "fresh", "limit", "due"),
    [
        (101, 60, 100, True),
        (100, 60, 100, False),
        (99, 60, 100, False),
        (101, 100, 100, True),
        (300, 101, 100, False),  # another one would be as large
        (10_000, 60, 0, False),  # no limit
    ],
)
def test_a_worker_is_too_large_above_the_limit_where_a_new_one_is_below(
    rss: int, fresh: int, limit: int, due: bool
) -> None:
    assert grown_too_large(Pulse(0.0, rss, fresh, 1), limit) is due
