"""Prompts as data: what stands before which text, and what goes into the profile."""

from __future__ import annotations

import pytest

from synapse_host.tokenization.text_prompts import NO_PROMPTS, TextPrompts

E5 = TextPrompts("query: ", "passage: ")


def test_each_kind_of_text_has_its_own() -> None:
    assert (E5.before("query"), E5.before("document")) == ("query: ", "passage: ")
    assert (NO_PROMPTS.before("query"), bool(NO_PROMPTS), bool(E5), bool(TextPrompts(query="q"))) == (
        "",
        False,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("prompts", "written"),
    [
        (E5, '{"document":"passage: ","query":"query: "}'),
        (TextPrompts(query="Instruct: a\nQuery:"), '{"query":"Instruct: a\\nQuery:"}'),
        (NO_PROMPTS, None),
    ],
)
def test_what_is_empty_is_left_out_of_the_profile(prompts: TextPrompts, written: str | None) -> None:
    assert prompts.to_json() == written
    assert TextPrompts.from_json(written) == prompts
