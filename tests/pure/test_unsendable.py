from __future__ import annotations

from typing import Any

import pytest

from synapse_host.client.unsendable import unsendable


@pytest.mark.parametrize(
    ("params", "said"),
    [
        (
            {"candidates": ["fine", "a\ud800b"]},
            "params.candidates[1] holds U+D800, half of a surrogate pair, at character 1",
        ),
        ({"items": [{"id": "1", "text": "\udfff"}]}, "params.items[0].text holds U+DFFF"),
        ({"deadline_ms": 10**30}, "params.deadline_ms is an integer of 100 bits"),
        ({"deadline_ms": -(2**63) - 1}, "64 can be sent; use a smaller one"),
        ({"options": {"a\ud800": 1}}, "a name in params.options holds U+D800"),
    ],
)
def test_the_parameter_is_named_with_its_place(params: dict[str, Any], said: str) -> None:
    found = unsendable(params)
    assert found is not None
    assert said in found


def test_what_can_be_sent_has_no_problem() -> None:
    assert unsendable({"a": [1, -(2**63), 2**64 - 1, None, True, 0.5, "é😀"], "b": {}}) is None
