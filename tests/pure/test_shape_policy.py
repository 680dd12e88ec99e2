"""The padded length of a row follows from its own length, and calls hold every row once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.owned_engine.shape_policy import ROW_COUNTS, BucketLadder, RowRefused, plan, regime

LADDER = BucketLadder(512)
COUNTS = st.lists(st.integers(1, 512), max_size=200)


EDGES = {1: 16, 15: 16, 16: 16, 17: 32, 32: 32, 33: 48, 129: 144, 255: 256, 256: 256, 257: 320, 321: 384, 512: 512}


@pytest.mark.parametrize(("tokens", "bucket"), EDGES.items())
def test_bucket_is_fine_up_to_256_and_coarse_above(tokens: int, bucket: int) -> None:
    assert LADDER.bucket(tokens) == bucket


def test_last_bucket_ends_at_the_lanes_limit() -> None:
    ladder = BucketLadder(300)
    assert ladder.bucket(299) == 300
    assert ladder.buckets()[-2:] == (256, 300)
    assert BucketLadder(40).buckets() == (16, 32, 40)


def test_ladder_of_512_has_twenty_buckets() -> None:
    assert LADDER.buckets() == (*range(16, 257, 16), 320, 384, 448, 512)


@pytest.mark.parametrize("tokens", [0, -1, 513])
def test_a_row_the_lane_cannot_hold_is_refused_with_both_numbers(tokens: int) -> None:
    with pytest.raises(RowRefused, match=rf"row 1: a row of {tokens} tokens .* 1 to 512") as refusal:
        plan([5, tokens, 7], LADDER)
    assert refusal.value.row == 1


@pytest.mark.parametrize(("limit", "budget"), [(0, 1024), (512, 0)])
def test_a_ladder_without_room_is_refused(limit: int, budget: int) -> None:
    with pytest.raises(ValueError, match=f"max_tokens {limit} and token_budget {budget}"):
        BucketLadder(limit, budget)


@given(COUNTS)
def test_every_row_is_in_exactly_one_call(counts: list[int]) -> None:
    rows = [row for call in plan(counts, LADDER) for row in call.row_indices]
    assert sorted(rows) == list(range(len(counts)))


@given(COUNTS)
def test_calls_keep_the_budget_and_the_row_counts(counts: list[int]) -> None:
    for call in plan(counts, LADDER):
        assert len(call.row_indices) in ROW_COUNTS
        assert call.tokens <= LADDER.token_budget


@given(COUNTS)
def test_a_row_gets_the_bucket_of_its_own_length(counts: list[int]) -> None:
    for call in plan(counts, LADDER):
        assert {LADDER.bucket(counts[row]) for row in call.row_indices} == {call.bucket}


def test_a_row_longer_than_the_budget_is_a_call_of_its_own() -> None:
    calls = plan([4000, 4000], BucketLadder(8192))
    assert [(call.bucket, call.row_indices) for call in calls] == [(4032, (0,)), (4032, (1,))]


def test_a_remainder_is_split_not_filled_up() -> None:
    assert [len(call.row_indices) for call in plan([100] * 13, LADDER)] == [8, 4, 1]


def test_shapes_of_a_lane_are_few() -> None:
    shapes = {(rows, bucket) for bucket in LADDER.buckets() for rows in ROW_COUNTS if rows * bucket <= 1024}
    assert len(shapes) <= 100


def test_regime_changes_above_256() -> None:
    assert [regime(bucket) for bucket in (16, 256, 320, 8192)] == ["full", "full", "band", "band"]
