from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.client.batching import Batch, estimated_tokens, is_too_large, plan_batches
from synapse_host.errors import InvalidRequest


@given(st.lists(st.text(max_size=200), max_size=60), st.integers(1, 10), st.integers(1, 200))
def test_plan_covers_every_text_once_within_the_limits(texts: list[str], max_items: int, max_tokens: int) -> None:
    batches = plan_batches(texts, max_items=max_items, max_tokens=max_tokens)
    assert sorted(place for batch in batches for place in batch.places) == list(range(len(texts)))
    for batch in batches:
        total = sum(estimated_tokens(texts[place]) for place in batch.places)
        assert len(batch.places) <= max_items
        assert total <= max_tokens or len(batch.places) == 1


def test_like_lengths_go_together_longest_first() -> None:
    texts = ["a" * 30, "b" * 3000, "c" * 60, "d" * 2999]
    assert [batch.places for batch in plan_batches(texts, max_items=2)] == [(1, 3), (2, 0)]


def test_truncating_lane_costs_no_more_than_its_ceiling() -> None:
    texts = ["x" * 100_000] * 8
    assert len(plan_batches(texts)) == 8
    assert len(plan_batches(texts, row_ceiling=512)) == 1


def test_halves_hold_what_the_whole_held() -> None:
    first, second = Batch((4, 1, 7)).halves()
    assert first.places + second.places == (4, 1, 7)
    assert abs(len(first.places) - len(second.places)) <= 1


@pytest.mark.parametrize(
    ("details", "too_large"),
    [
        ({"tokens": 9000, "max_tokens": 8192}, True),
        ({"items": 65, "max_items": 64}, True),
        ({"item_id": "a"}, False),
        (None, False),
    ],
)
def test_size_refusals_are_told_from_others(details: dict[str, object] | None, too_large: bool) -> None:
    assert is_too_large(InvalidRequest("no", details=details)) is too_large
