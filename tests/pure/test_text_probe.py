"""Where two texts part: the first token that differs, and an end too early or too late."""

from __future__ import annotations

import pytest

from synapse_host.certification.text_probe import first_divergence

EXPECTED = [[1, 2, 3], [4, 5], []]


@pytest.mark.parametrize(
    ("actual", "found"),
    [
        ([[1, 2, 3], [4, 5], []], None),
        ([[1, 2, 4], [4, 5], []], (0, 2)),
        ([[1, 2, 3], [5, 5], []], (1, 0)),
        ([[1, 2], [4, 5], []], (0, 2)),
        ([[1, 2, 3], [4, 5, 6], []], (1, 2)),
        ([[1, 2, 3], [4, 5], [0]], (2, 0)),
    ],
)
def test_the_first_token_that_differs_is_found(actual: list[list[int]], found: tuple[int, int] | None) -> None:
    assert first_divergence(EXPECTED, actual) == found
