"""What the table of a probe says of the backend's own check."""

from __future__ import annotations

from typing import Any

import pytest

from synapse_host.cli.rendering import _operations


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (None, None),
        ({"operations": 31, "shares": {}}, "31 exact"),
        ({"operations": 31, "shares": {"gelu": 0.32, "linear": 0.051}}, "31, gelu at 32%"),
        ({"operations": 31, "shares": {"linear": 7.5, "gelu": 0.2}}, "31, linear at 750%"),
    ],
)
def test_the_operation_that_took_most_of_its_tolerance_is_named(engine: dict[str, Any] | None, said: str) -> None:
    assert _operations(engine) == said
