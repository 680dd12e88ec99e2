from __future__ import annotations

import numpy as np
import pytest

from synapse_host.cli.passages import MIN_CHARS, Passage, nearest, split_passages

LONG = "A sentence that is long enough to be an answer to somebody."


def test_paragraphs_are_separated_by_blank_lines_and_know_their_first_line() -> None:
    text = f"\n{LONG}\nand goes on\n\n   \n\n{LONG}\n"
    assert split_passages("a.md", text) == [Passage("a.md", 2, f"{LONG}\nand goes on"), Passage("a.md", 7, LONG)]


def test_the_last_paragraph_needs_no_newline() -> None:
    assert split_passages("a.md", f"title\n\n{LONG}") == [Passage("a.md", 3, LONG)]


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_lines_are_counted_as_editors_count_them(ending: str) -> None:
    text = ending.join(["one\x0cform feed", "", LONG])
    (passage,) = split_passages("a.md", text)
    assert passage.line == 3


def test_what_is_too_short_to_mean_something_is_left_out() -> None:
    kept, dropped = "x" * MIN_CHARS, "x" * (MIN_CHARS - 1)
    assert [passage.text for passage in split_passages("a.md", f"{dropped}\n\n{kept}")] == [kept]


@pytest.mark.parametrize("text", ["", "\n\n\n", "   "])
def test_nothing_has_no_passages(text: str) -> None:
    assert split_passages("a.md", text) == []


def passages(count: int) -> list[Passage]:
    return [Passage("a.md", line, f"passage {line}") for line in range(1, count + 1)]


def test_the_nearest_come_first_and_only_as_many_as_asked() -> None:
    vectors = np.array([[0, 1], [1, 0], [0.6, 0.8]], np.float32)
    found = nearest(np.array([1, 0], np.float32), passages(3), vectors, [False] * len(vectors), top=2)
    assert [match.passage.line for match in found] == [2, 3]
    assert [match.score for match in found] == pytest.approx([1.0, 0.6])


def test_scores_are_cosines_whatever_the_lengths() -> None:
    vectors = np.array([[3, 4], [100, 0]], np.float32)
    found = nearest(np.array([10, 0], np.float32), passages(2), vectors, [False] * len(vectors), top=2)
    assert [match.score for match in found] == pytest.approx([1.0, 0.6])


def test_equal_scores_keep_the_order_given() -> None:
    vectors = np.ones((5, 3), np.float32)
    found = nearest(np.ones(3, np.float32), passages(5), vectors, [False] * len(vectors), top=9)
    assert [match.passage.line for match in found] == [1, 2, 3, 4, 5]
