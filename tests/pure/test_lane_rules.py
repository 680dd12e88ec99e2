from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.hookspecs import BatchPolicy
from synapse_host.lanes.batching import group_rows, padded_length
from synapse_host.lanes.lane_state import IllegalMove, LaneEvent, LaneState, next_state

LADDER = tuple(range(16, 257, 16)) + tuple(range(320, 513, 64))


@given(
    counts=st.lists(st.integers(1, 512), max_size=200),
    rows=st.integers(1, 64),
    budget=st.integers(16, 4096),
    ladder=st.sampled_from([None, LADDER]),
)
def test_groups_hold_every_row_once_within_the_policy(
    counts: list[int], rows: int, budget: int, ladder: tuple[int, ...] | None
) -> None:
    groups = group_rows(counts, BatchPolicy(rows, budget), ladder)
    assert sorted(index for group in groups for index in group) == list(range(len(counts)))
    for group in groups:
        assert 0 < len(group) <= rows
        padded = sum(padded_length(counts[index], ladder) for index in group)
        assert padded <= budget or len(group) == 1


def test_groups_are_sorted_by_length_so_that_little_is_padded() -> None:
    assert group_rows([30, 1, 20, 2], BatchPolicy(2, 1000)) == [[1, 3], [2, 0]]


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    assert group_rows([5, 500, 5], BatchPolicy(8, 64)) == [[0, 2], [1]]


@pytest.mark.parametrize(("count", "length"), [(1, 16), (16, 16), (17, 32), (256, 256), (257, 320), (512, 512)])
def test_padded_length_is_the_smallest_rung_that_holds_the_row(count: int, length: int) -> None:
    assert padded_length(count, LADDER) == length


def test_lane_walks_its_life_cycle() -> None:
    state = LaneState.UNLOADED
    for event, expected in [
        (LaneEvent.LOAD, LaneState.LOADING),
        (LaneEvent.LOAD_FAILED, LaneState.FAILED),
        (LaneEvent.LOAD, LaneState.LOADING),
        (LaneEvent.LOADED, LaneState.READY),
        (LaneEvent.WORKER_DIED, LaneState.UNLOADED),
        (LaneEvent.LOAD, LaneState.LOADING),
        (LaneEvent.LOADED, LaneState.READY),
        (LaneEvent.UNLOAD, LaneState.UNLOADING),
        (LaneEvent.WORKER_DIED, LaneState.UNLOADING),
        (LaneEvent.UNLOADED, LaneState.UNLOADED),
    ]:
        state = next_state(state, event)
        assert state is expected


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (LaneState.UNLOADED, LaneEvent.LOADED),
        (LaneState.LOADING, LaneEvent.LOAD),
        (LaneState.LOADING, LaneEvent.UNLOAD),
        (LaneState.READY, LaneEvent.LOAD),
        (LaneState.FAILED, LaneEvent.WORKER_DIED),
    ],
)
def test_an_illegal_move_is_refused_by_name(state: LaneState, event: LaneEvent) -> None:
    with pytest.raises(IllegalMove, match=f"{event} is not allowed in state {state}"):
        next_state(state, event)
