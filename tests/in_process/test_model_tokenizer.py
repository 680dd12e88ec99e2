"""Tokenizers of other kinds, made here with the real library, and files that are none."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from synapse_host.errors import InvalidRequest
from synapse_host.testing.models.tiny_encoders import unigram_tokenizer
from synapse_host.tokenization.model_tokenizer import ModelTokenizer


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def byte_level(*, special: bool) -> bytes:
    """One token per byte, as byte-level BPE falls back to; ``special`` ends every text with <eos>."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if special:
        tokenizer.add_special_tokens(["<eos>"])
        tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 256)])
    return str(tokenizer.to_str()).encode()


def word_level(**words: int) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocab={"[UNK]": 0, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def unigram(score: float) -> bytes:
    tokenizer = Tokenizer(models.Unigram(vocab=[("<unk>", 0.0), ("▁a", -8.25), ("b", score)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return str(tokenizer.to_str()).encode()


def load(data: bytes | Tokenizer, *, max_tokens: int = 8, vocab_size: int = 300) -> ModelTokenizer:
    raw = data if isinstance(data, bytes) else str(data.to_str()).encode()
    return ModelTokenizer.from_json(raw, max_tokens=max_tokens, vocab_size=vocab_size)


def test_special_tokens_at_the_end_only_are_kept_there_when_cut() -> None:
    tokenizer = load(byte_level(special=True), max_tokens=4)
    assert tokenizer.special_tokens == 1
    (encoded,) = tokenizer.encode(["abcdef"])
    assert encoded.ids[-1] == 256
    assert (encoded.submitted_tokens, encoded.effective_tokens) == (7, 4)
    assert encoded.content_sha256 == sha("abc")


def test_a_tokenizer_without_special_tokens_gives_nothing_for_nothing() -> None:
    tokenizer = load(byte_level(special=False))
    assert tokenizer.special_tokens == 0
    (encoded,) = tokenizer.encode([""])
    assert (encoded.ids, encoded.submitted_tokens, encoded.truncated) == ([], 0, False)


def test_a_cut_inside_a_character_that_decodes_like_the_whole_text_still_shows() -> None:
    # U+FFFD is three bytes; kept without its last two it decodes to U+FFFD again, and so to the very text.
    text = "ab\ufffd"
    (encoded,) = load(byte_level(special=False), max_tokens=3).encode([text])
    assert (encoded.submitted_tokens, encoded.effective_tokens, encoded.truncated) == (5, 3, True)
    assert encoded.content_sha256 == sha("ab") != encoded.submitted_sha256


def test_a_cut_before_tokens_that_decode_to_nothing_still_shows() -> None:
    tokenizer = word_level(a=1, b=2)
    tokenizer.decoder = decoders.Replace("b", "")
    (encoded,) = load(tokenizer, max_tokens=1).encode(["a b"])
    assert encoded.truncated
    assert encoded.content_sha256 == sha("a")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("a", "a b")])
    (encoded,) = load(tokenizer, max_tokens=1).encode(["a b"])
    assert encoded.truncated
    assert encoded.content_sha256 == sha("") != encoded.submitted_sha256


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=4))
def test_the_hashes_differ_exactly_when_bytes_were_cut(texts: list[str]) -> None:
    for text, encoded in zip(texts, BYTES_OF_5.encode(texts), strict=True):
        assert encoded.submitted_tokens == len(text.encode())
        assert encoded.truncated is (len(text.encode()) > 5)
        assert (encoded.content_sha256 == encoded.submitted_sha256) is not encoded.truncated


BYTES_OF_5 = load(byte_level(special=False), max_tokens=5)


def test_padding_and_truncation_of_any_kind_are_without_effect_and_outside_the_digest() -> None:
    plain = word_level(a=1)
    trimmed = word_level(a=1)
    trimmed.enable_padding(direction="left", length=6, pad_id=0, pad_token="[UNK]")
    trimmed.enable_truncation(2, stride=1, direction="left")
    assert load(trimmed).encode(["a a a"]) == load(plain).encode(["a a a"])
    assert load(trimmed).sanitized_digest == load(plain).sanitized_digest


def test_scores_of_a_unigram_vocabulary_count_by_value_not_by_how_they_are_written() -> None:
    data = unigram(-1e-7)
    rewritten = data.replace(b"-1e-7", b"-0.0000001").replace(b"-8.25", b"-825e-2")
    assert rewritten != data
    assert load(rewritten).sanitized_digest == load(data).sanitized_digest
    assert load(unigram(-1.1e-7)).sanitized_digest != load(data).sanitized_digest


def test_an_integer_no_double_holds_is_read_as_the_nearest_as_the_library_does() -> None:
    exact, written = unigram(float(2**60)), str(2**60 + 1).encode()
    data = exact.replace(b"1.152921504606847e+18", written)
    assert written in data
    assert load(data).sanitized_digest == load(exact).sanitized_digest


def test_an_added_token_beyond_the_vocabulary_is_refused_with_its_text() -> None:
    tokenizer = word_level(a=1)
    tokenizer.add_tokens([AddedToken("<extra>")])
    load(tokenizer, vocab_size=3)
    with pytest.raises(InvalidRequest, match="token '<extra>' the id 2, but the model's vocabulary has 2 entries"):
        load(tokenizer, vocab_size=2)


def test_an_added_token_without_a_row_is_left_out_where_it_may_be() -> None:
    """Gemma 3's file has one for images that its GGUF files do not have: a text that spells it is text."""
    raw = json.loads(byte_level(special=True))
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": 257, "content": "<image>"})
    data = json.dumps(raw).encode()
    with pytest.raises(InvalidRequest, match="token '<image>' the id 257"):
        ModelTokenizer.from_json(data, max_tokens=20, vocab_size=257)
    tokenizer = ModelTokenizer.from_json(data, max_tokens=20, vocab_size=257, rowless_added=True)
    (spelled,) = tokenizer.encode(["<image><eos>"])
    assert len(spelled.ids) == len("<image>") + 2
    assert list(spelled.ids[-2:]) == [256, 256]
    whole = ModelTokenizer.from_json(data, max_tokens=20, vocab_size=258, rowless_added=True)
    assert list(whole.encode(["<image>"])[0].ids) == [257, 256]
    assert whole.sanitized_digest == tokenizer.sanitized_digest


def test_a_word_without_a_row_is_refused_all_the_same() -> None:
    raw = json.loads(str(word_level(a=1, extra=2).to_str()))
    for data in (raw, {key: value for key, value in raw.items() if key != "added_tokens"}):
        with pytest.raises(InvalidRequest, match="token 'extra' the id 2"):
            ModelTokenizer.from_json(json.dumps(data).encode(), max_tokens=8, vocab_size=2, rowless_added=True)


def test_a_special_token_the_template_makes_up_is_refused() -> None:
    tokenizer = word_level(a=1)
    tokenizer.post_processor = processors.TemplateProcessing(single="<x> $A", special_tokens=[("<x>", 777)])
    with pytest.raises(InvalidRequest, match="adds the special token 777, but the model's vocabulary has 300 entries"):
        load(tokenizer)


def test_a_template_with_a_special_token_inside_the_text_is_refused() -> None:
    tokenizer = word_level(a=1)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [UNK] $A", special_tokens=[("[UNK]", 0)])
    with pytest.raises(InvalidRequest, match="does not keep the text in one piece"):
        load(tokenizer)


def test_a_tokenizer_that_makes_nothing_of_a_letter_shows_no_place_for_its_special_tokens() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"z": 0, "<x>": 1}, merges=[]))
    tokenizer.post_processor = processors.TemplateProcessing(single="<x> $A", special_tokens=[("<x>", 1)])
    with pytest.raises(InvalidRequest, match=r"turns \[\] into \[1\]"):
        load(tokenizer)


@pytest.mark.parametrize(
    ("processor", "ids"),
    [
        (processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)), [1, 3, 3, 2]),
        (processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1), add_prefix_space=False), [1, 3, 3, 2]),
        (processors.TemplateProcessing(single="a $A a", special_tokens=[("a", 3)]), [3, 3, 3, 3]),
        (processors.TemplateProcessing(single="[CLS] a $A", special_tokens=[("[CLS]", 1), ("a", 3)]), [1, 3, 3, 3]),
        (processors.ByteLevel(), [3, 3, 3, 3]),
    ],
    ids=["bert", "roberta", "letters as special tokens", "two before", "none"],
)
def test_every_kind_of_post_processor_keeps_its_special_tokens_when_cut(processor: Any, ids: list[int]) -> None:
    tokenizer = word_level(a=3)
    tokenizer.post_processor = processor
    (encoded,) = load(tokenizer, max_tokens=4).encode(["a a a a a a"])
    assert encoded.ids == ids


def test_a_vocabulary_without_its_unknown_token_is_refused_at_load() -> None:
    tokenizer = Tokenizer(models.WordPiece(vocab={"a": 0}, unk_token="[UNK]"))
    with pytest.raises(InvalidRequest, match="cannot encode a text: WordPiece error"):
        load(tokenizer)


def test_a_file_that_makes_the_library_panic_is_refused() -> None:
    document = json.loads(word_level(a=1).to_str())
    document["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": ""}
    with pytest.raises(InvalidRequest, match="is no tokenizer the library can load: Precompiled"):
        load(json.dumps(document).encode())


def test_a_decoder_that_panics_on_a_cut_text_is_a_refusal() -> None:
    document = json.loads(word_level(a=1).to_str())
    document["decoder"] = {"type": "Strip", "content": "a", "start": 1, "stop": 1}
    tokenizer = load(json.dumps(document).encode(), max_tokens=4)
    with pytest.raises(InvalidRequest, match="could not decode the kept tokens"):
        tokenizer.encode(["a a a a a a a a"])


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "of 0 bytes is not JSON"),
    "cut short": (byte_level(special=False)[:-20], "is not JSON"),
    "a list": (b"[]", "the document is a list, not an object"),
    "no model": (b'{"version": "1.0"}', "is no tokenizer the library can load"),
    "unknown model": (b'{"version": "1.0", "model": {"type": "Abacus"}}', "is no tokenizer the library can load"),
    "empty vocabulary": (str(Tokenizer(models.BPE()).to_str()).encode(), "has an empty vocabulary"),
    "NaN": (b'{"a": NaN}', "NaN is no JSON number"),
    "a number past every double": (b'{"a": 1e400}', "inf has no JSON form"),
    "not UTF-8": (b'{"a": "\xff"}', "is not JSON"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "half of a surrogate pair"),
    "nested too deep": (b"[" * 200_000, "is not JSON"),
}


@pytest.mark.parametrize(("data", "fault"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_no_tokenizer_is_refused_by_name(data: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(data)
    assert caught.value.message.startswith("tokenizer.json ")
    assert fault in caught.value.message
    assert caught.value.message.endswith("use the file published with the model")
    assert caught.value.details is not None
    assert caught.value.details["file"] == "tokenizer.json"


def test_a_library_failure_while_serving_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            raise RuntimeError("planted")

    tokenizer = load(word_level(a=1))
    monkeypatch.setattr(tokenizer, "_tokenizer", Broken())
    with pytest.raises(InvalidRequest, match="could not encode these texts: planted"):
        tokenizer.encode(["a"])


def test_an_interrupt_is_not_taken_for_a_fault_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def encode_batch_fast(self, texts: list[str]) -> Any:
            raise KeyboardInterrupt

    tokenizer = load(word_level(a=1))
    monkeypatch.setattr(tokenizer, "_tokenizer", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode(["a"])


def test_lower_casing_and_accents_do_not_touch_the_hash_of_a_whole_text() -> None:
    tokenizer = word_level(ecole=1)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )
    (encoded,) = load(tokenizer).encode(["ÉCOLE"])
    assert encoded.ids == [1]
    assert encoded.content_sha256 == encoded.submitted_sha256 == sha("ÉCOLE")


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("tokenization.model_tokenizer", "tokenizers numpy sqlalchemy pydantic"),
        (
            "store.database store.module_store store.model_store store.certification_store store.migrations",
            "tokenizers numpy rich",
        ),
        (
            "identity.canonical_json identity.digests identity.numeric_profile identity.machine_profile "
            "model_files.safetensors_header model_files.source_files model_files.architectures",
            "tokenizers numpy sqlalchemy pydantic anyio",
        ),
    ],
    ids=["tokenization", "store", "identity and model files"],
)
def test_importing_a_room_stays_light(modules: str, absent: str) -> None:
    imports = "; ".join(f"import synapse_host.{module}" for module in modules.split())
    program = f"{imports}; import sys; print(*[name for name in {absent.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_unigram_tokenizer_gives_its_ids_between_its_special_tokens() -> None:
    data = json.dumps(unigram_tokenizer(101)).encode()
    tokenizer = ModelTokenizer.from_json(data, max_tokens=7, vocab_size=101)
    whole, cut, empty = tokenizer.encode(["tea \u2603", "the tale", ""])
    assert tokenizer.special_tokens == 2
    assert whole.ids == [0, 8, 5, 9, 4, 3, 2]
    assert (cut.ids[0], cut.ids[-1], cut.submitted_tokens, cut.effective_tokens) == (0, 2, 9, 7)
    assert empty.ids == [0, 2]
