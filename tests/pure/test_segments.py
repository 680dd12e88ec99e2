"""Blocks are cut into segments only where a call is long, and no block is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.owned_engine.segments import MAX_SEGMENTS, Segment, segments_for, tokens_to_cut


@pytest.mark.parametrize("tokens", [1, 16, 1024])
def test_up_to_1024_tokens_the_model_is_one_segment(tokens: int) -> None:
    assert segments_for(6, tokens) == (Segment(0, 6, 6),)


@pytest.mark.parametrize("tokens", [1025, 2048, 4096, 8192, 10**6])
def test_longer_calls_are_all_cut_into_the_same_seven(tokens: int) -> None:
    assert segments_for(22, tokens) == segments_for(22, 1025)
    assert len(segments_for(22, tokens)) == 7


@given(st.integers(1, 100), st.integers(1, 20_000))
def test_segments_hold_every_block_once_in_order(blocks: int, tokens: int) -> None:
    cut = segments_for(blocks, tokens)
    assert [i for segment in cut for i in range(segment.first, segment.stop)] == list(range(blocks))
    assert 1 <= len(cut) <= min(blocks, MAX_SEGMENTS)
    sizes = [segment.stop - segment.first for segment in cut]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 100), st.integers(1, 20_000))
def test_only_the_first_has_the_stem_and_only_the_last_the_head(blocks: int, tokens: int) -> None:
    cut = segments_for(blocks, tokens)
    assert [segment.has_stem for segment in cut] == [True] + [False] * (len(cut) - 1)
    assert [segment.has_head for segment in cut] == [False] * (len(cut) - 1) + [True]


@pytest.mark.parametrize(
    ("blocks", "width", "heavy"),
    [(6, 384, False), (12, 768, False), (22, 768, False), (24, 1024, True), (28, 1024, True)],
    ids=["MiniLM", "bge-base", "gte-modernbert-base", "bge-m3", "Qwen3-0.6B"],
)
def test_a_heavy_model_is_cut_the_same_for_every_call(blocks: int, width: int, heavy: bool) -> None:
    short, long = (segments_for(blocks, tokens_to_cut(blocks, width, tokens)) for tokens in (16, 8192))
    assert long == segments_for(blocks, 8192)
    assert (short == long) is heavy


@pytest.mark.parametrize("tokens", [16, 8192])
def test_stem_and_head_of_a_model_without_blocks_are_one_segment(tokens: int) -> None:
    (whole,) = segments_for(0, tokens)
    assert whole.has_stem
    assert whole.has_head


def test_less_than_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 blocks"):
        segments_for(-1, 16)
