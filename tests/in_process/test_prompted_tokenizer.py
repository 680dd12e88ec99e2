"""A prompt is joined to its text before it is tokenized, counted with it, and never part of what was received."""

from __future__ import annotations

import hashlib
import json

import pytest

from synapse_host.errors import InvalidRequest
from synapse_host.testing.models.tiny_models import tiny_tokenizer
from synapse_host.tokenization.model_tokenizer import ModelTokenizer
from synapse_host.tokenization.text_prompts import NO_PROMPTS, TextPrompts

VOCAB = 120
DATA = json.dumps(tiny_tokenizer(VOCAB)).encode()
PROMPTS = TextPrompts("query: ", "passage: a ")


def tokenizer(prompts: TextPrompts = NO_PROMPTS, max_tokens: int = 40) -> ModelTokenizer:
    return ModelTokenizer.from_json(DATA, max_tokens=max_tokens, vocab_size=VOCAB, prompts=prompts)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("text", ["", "a b c", " b", "query: a", "ä\x00"])
def test_tokens_are_those_of_the_joined_string(text: str) -> None:
    plain, prompted = tokenizer(), tokenizer(PROMPTS)
    for kind, prompt in (("query", PROMPTS.query), ("document", PROMPTS.document)):
        (found,) = prompted.encode([text], input_type=kind)  # type: ignore[arg-type]
        (wanted,) = plain.encode([prompt + text])
        assert found.ids == wanted.ids
        assert found.submitted_tokens == found.effective_tokens == len(found.ids)
        assert found.submitted_sha256 == found.content_sha256 == sha(text)


def test_a_document_is_meant_unless_a_query_is() -> None:
    prompted = tokenizer(PROMPTS)
    assert prompted.encode(["a"])[0].ids == prompted.encode(["a"], input_type="document")[0].ids
    assert prompted.encode(["a"])[0].ids != prompted.encode(["a"], input_type="query")[0].ids


def test_a_prompt_takes_room_from_its_text_and_a_cut_shows_in_the_hash() -> None:
    prompted = tokenizer(PROMPTS, max_tokens=16)
    text = "a b c d " * 9
    (found,) = prompted.encode([text], input_type="query")
    (alone,) = prompted.encode([""], input_type="query")
    assert found.truncated
    assert found.effective_tokens == 16
    assert found.ids[: len(alone.ids) - 1] == alone.ids[:-1]
    assert found.submitted_sha256 == sha(text) != found.content_sha256


def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidRequest, match="document prompt takes") as refused:
        tokenizer(TextPrompts(document="a b c d " * 9), max_tokens=16)
    assert refused.value.details is not None
    assert refused.value.details["max_tokens"] == 16
    assert refused.value.details["prompt_tokens"] >= 16
