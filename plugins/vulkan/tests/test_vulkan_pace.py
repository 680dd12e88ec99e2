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
    assert not pace.too_slow({"gemm_direct"}, SUBMISSION_S, LONGEST_S)
    assert pace.seconds("gemm_direct", 1e9) == 1.0


def test_the_speeds_of_what_was_in_a_slow_submission_follow_it_and_no_others() -> None:
    pace = Pace(1e9, 1e9)
    assert pace.too_slow({"attention", "norm"}, 0.25, 2.5)
    assert pace.seconds("attention", 1e9) == pytest.approx(10.0)
    assert pace.seconds("rope", 1e9) == pytest.approx(160.0)
    assert pace.seconds("gemm_direct", 1e9) == 1.0
    # What is cut anew is expected to take its time, so that it is not cut again.
    assert len(cut_groups(step(1000), pace.seconds("attention", 1e9) / SUBMISSION_S)) == 40


def test_a_device_slower_than_any_expectation_makes_none_faster() -> None:
    pace = Pace(1e9)
    assert pace.too_slow({"gemm_direct"}, 5.0, 1.0)
    assert pace.seconds("gemm_direct", 1e9) == 1.0
