"""Submissions are cut by expected seconds, and the expectation follows what is measured."""

from __future__ import annotations

import pytest
from synapse_vulkan.pace import LONGEST_S, SUBMISSION_S, Pace
from synapse_vulkan.recording import Step, cut_groups


def step(groups: int) -> Step:
    return Step("gemm_direct", (), (), (), b"", (3, groups, 2), 1.0)


@pytest.mark.parametrize(("shares", "pieces"), [(0.0, 1), (0.9, 1), (1.0, 1), (1.1, 2), (4.0, 4), (1e9, 10)])
def test_a_step_is_cut_into_its_shares_and_no_further_than_its_groups(shares: float, pieces: int) -> None:
    cut = cut_groups(step(10), shares)
    assert len(cut) == pieces
    assert [base[1] for base, _ in cut] == sorted({base[1] for base, _ in cut})
    assert sum(groups[1] for _, groups in cut) == 10
    assert all(groups[0] == 3 and groups[2] == 2 for _, groups in cut)


def test_what_was_not_measured_is_taken_for_slower_than_products() -> None:
    pace = Pace(1e9)
    assert pace.seconds("gemm_tiled", 1e9) == 1.0
    assert pace.seconds("attention", 1e9) == 4.0
    assert pace.seconds("norm", 1e9) == 16.0
    assert Pace(1e9, 2e9).seconds("attention", 1e9) == 0.5


def test_a_submission_within_its_time_changes_nothing() -> None:
    pace = Pace(1e9)
    assert not pace.learn({"gemm_direct"}, SUBMISSION_S, LONGEST_S)
    assert pace.seconds("gemm_direct", 1e9) == 1.0


def test_the_speeds_of_what_was_in_a_slow_submission_follow_it_and_no_others() -> None:
    pace = Pace(1e9, 1e9)
    assert pace.learn({"attention", "norm"}, 0.25, 0.75)
    assert pace.seconds("attention", 1e9) == pytest.approx(3.0)
    assert pace.seconds("rope", 1e9) == pytest.approx(48.0)
    assert pace.seconds("gemm_direct", 1e9) == 1.0
    # What is cut anew is expected to take its time, so that it is not cut again.
    assert len(cut_groups(step(1000), pace.seconds("attention", 1e9) / SUBMISSION_S)) == 12


def test_a_machine_that_slept_costs_a_step_and_comes_back() -> None:
    pace = Pace(1e9)
    assert pace.learn({"gemm_direct"}, 0.25, 30_000.0)
    assert pace.seconds("gemm_direct", 1e9) == pytest.approx(4.0)
    assert pace.learn({"gemm_direct"}, 0.25, 0.02)
    assert pace.learn({"gemm_direct"}, 0.25, 0.02)
    assert pace.seconds("gemm_direct", 1e9) == pytest.approx(1.0)
    # It never gets faster than it was measured, so nothing is cut again for nothing.
    assert not pace.learn({"gemm_direct"}, 0.25, 0.02)


def test_trouble_without_end_stops_at_a_least_speed_and_is_cut_no_further() -> None:
    pace = Pace(1e9)
    changes = [pace.learn({"gemm_direct"}, 0.25, 100.0) for _ in range(9)]
    assert changes == [True] * 3 + [False] * 6
    assert pace.seconds("gemm_direct", 1e9) == pytest.approx(64.0)


@pytest.mark.parametrize(("expected", "took"), [(0.019, 0.0001), (0.25, 0.04), (0.0, 0.0)])
def test_what_is_short_says_nothing(expected: float, took: float) -> None:
    pace = Pace(1e9)
    assert pace.learn({"norm"}, 0.25, 1.0)
    assert not pace.learn({"norm"}, expected, took)


def test_a_submission_expected_to_be_long_makes_no_device_faster() -> None:
    pace = Pace(1e9)
    assert not pace.learn({"gemm_direct"}, 5.0, 1.0)
    assert pace.seconds("gemm_direct", 1e9) == 1.0
