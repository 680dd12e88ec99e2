"""Which texts the library encodes together: never a long one with others, and few words each by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from synapse_host.errors import InvalidRequest
from synapse_host.tokenization.token_ids import FEW_CHARACTERS, LONG_CHARACTERS, token_ids


class Library:
    """One id for each text, its length; notes how many texts each call was given."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_batch_fast(self, texts: list[str], **options: Any) -> list[SimpleNamespace]:
        self.calls.append(len(texts))
        return [SimpleNamespace(ids=[len(text), *options.values()]) for text in texts]


def test_few_words_are_encoded_one_by_one_and_wait_for_no_other_thread() -> None:
    library = Library()
    assert list(token_ids(library, ["a", "bb", ""], special=7)) == [[1, 7], [2, 7], [0, 7]]
    assert library.calls == [1, 1, 1]
    assert list(token_ids(library, [])) == []


def test_long_texts_are_encoded_alone_and_in_their_turn() -> None:
    library = Library()
    lengths = [LONG_CHARACTERS + 1, 10, FEW_CHARACTERS, LONG_CHARACTERS + 2, LONG_CHARACTERS]
    made = token_ids(library, ["x" * length for length in lengths])
    assert next(made) == [lengths[0]]
    assert library.calls == [3, 1], "the second long one has yet to have its turn"
    assert [ids[0] for ids in made] == lengths[1:]
    assert library.calls == [3, 1, 1]


def test_a_fault_of_the_library_is_a_refusal_in_either_way() -> None:
    class Broken:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            raise RuntimeError("planted")

    for texts in (["a"], ["a" * FEW_CHARACTERS] * 2):
        with pytest.raises(InvalidRequest, match="could not encode these texts: planted"):
            list(token_ids(Broken(), texts))
