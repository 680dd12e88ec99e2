"""GGUF headers that lie are refused with the numbers that disagree, before anything is mapped."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synapse_host.model_files.gguf_cursor import GgufFault
from synapse_host.model_files.gguf_header import MAX_NUMBERS, MAX_TENSORS, ArrayOf, GgufHeader, read_gguf_header
from synapse_host.model_files.gguf_model import GgufModel, read_gguf_model
from synapse_host.testing.models.gguf_file import text, value_bytes, write_gguf
from synapse_host.testing.models.tiny_gguf import TinyDecoder

TINY = TinyDecoder(seed=1, hidden=16, layers=1, heads=2, groups=1, intermediate=16, positions=64)


def header_of(path: Path, data: bytes | None = None) -> GgufHeader:
    if data is not None:
        path.write_bytes(data)
    with path.open("rb") as file:
        return read_gguf_header(file.fileno(), path.stat().st_size)


def model_of(path: Path, **changes: Any) -> GgufModel:
    values = {key: value for key, value in (TINY.values() | changes).items() if value is not None}
    write_gguf(path, values, TINY.tensors())
    with path.open("rb") as file:
        return read_gguf_model(file.fileno(), path.stat().st_size)


@pytest.fixture
def whole(tmp_path: Path) -> bytes:
    path = tmp_path / "whole.gguf"
    write_gguf(path, {"general.architecture": "llama", "n": 7}, {"a": np.ones((3, 5)), "b": np.ones(4)})
    return path.read_bytes()


def test_a_whole_file_is_read_with_positions_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_gguf(path, {"s": "é", "i": 3, "f": 0.5, "t": True, "words": ["a", "b"], "nums": [1, 2, 3]}, {"rows": rows})
    header = header_of(path)
    assert header.values == {
        "s": "é", "i": 3, "f": 0.5, "t": True, "words": ArrayOf(2, (b"a", b"b")), "nums": ArrayOf(3, numbers=(1, 2, 3)),
    }  # fmt: skip
    tensor = header.tensors["rows"]
    assert tensor.dims == (3, 2)
    assert path.read_bytes()[tensor.start : tensor.end] == rows.tobytes()


def test_the_sizes_of_a_model_are_read(tmp_path: Path) -> None:
    model = model_of(tmp_path / "m.gguf")
    assert (model.architecture, model.context_length, model.embedding_length, model.block_count) == ("llama", 64, 16, 1)
    assert model.vocab_size == len(TINY.tokens)
    assert "blk.0.attn_q.weight" in model.tensor_names


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    """Up to the last byte of the last tensor; the padding after it may be missing."""
    end = header_of(tmp_path / "whole.gguf").tensors["b"].end
    for length in range(end):
        with pytest.raises(GgufFault):
            header_of(tmp_path / "cut", whole[:length])
    assert header_of(tmp_path / "cut", whole[:end]).tensors


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: b"GGML" + data[4:], "begins with b'GGML'"),
        (lambda data: data[:4] + struct.pack("<I", 1) + data[8:], "version 1"),
        (lambda data: data[:4] + struct.pack(">I", 3) + data[8:], "version 50331648"),
        (lambda data: data[:8] + struct.pack("<Q", 2**63) + data[16:], f"more than the {MAX_TENSORS}"),
        (lambda data: data[:16] + struct.pack("<Q", 2**40) + data[24:], "key-value pairs"),
        (lambda data: data.replace(text("n") + value_bytes(7), text("n") + struct.pack("<II", 77, 7)), "type 77"),
        (lambda data: data.replace(text("general.architecture"), struct.pack("<Q", 2**60) + b"g" * 20), "2**60"),
        (lambda data: data.replace(text("b"), text("a")), "more than once"),
        (lambda data: data.replace(text("b"), text("\0")), "with a NUL in it"),
        (lambda data: data.replace(text("n"), text("\0")), "with a NUL in it"),
        (lambda data: data.replace(struct.pack("<QQIQ", 5, 3, 0, 0), struct.pack("<QQIQ", 5, 3, 0, 32)), "begins at"),
        (lambda data: data.replace(struct.pack("<QQIQ", 5, 3, 0, 0), struct.pack("<QQIQ", 5, 3, 99, 0)), "type 99"),
        (
            lambda data: data.replace(struct.pack("<QQIQ", 5, 3, 0, 0), struct.pack("<QQIQ", 2**40, 2**40, 0, 0)),
            "which no file can hold",
        ),
        (
            lambda data: data.replace(struct.pack("<QQIQ", 5, 3, 0, 0), struct.pack("<QQIQ", 2**20, 2**20, 0, 0)),
            "past the",
        ),
        (lambda data: data.replace(struct.pack("<IQQ", 2, 5, 3), struct.pack("<IQQ", 5, 5, 3)), "5 dimensions"),
    ],
)
def test_a_header_that_lies_is_refused(
    tmp_path: Path, whole: bytes, change: Callable[[bytes], bytes], said: str
) -> None:
    spoiled = change(whole)
    assert spoiled != whole
    with pytest.raises(GgufFault) as refusal:
        header_of(tmp_path / "m", spoiled)
    assert said.replace("2**60", str(2**60)) in str(refusal.value)


@pytest.mark.parametrize("alignment", [0, 3, 4, 2**20, "32"])
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, alignment: Any) -> None:
    path = tmp_path / "m"
    write_gguf(path, {"general.alignment": alignment}, {"a": np.ones(4)})
    with pytest.raises(GgufFault, match="alignment"):
        header_of(path)


def test_counts_of_arrays_are_held_against_the_file(tmp_path: Path, whole: bytes) -> None:
    for kind in (8, 4):
        array = struct.pack("<IIQ", 9, kind, 2**59)
        with pytest.raises(GgufFault, match=f"the {2**59} "):
            header_of(tmp_path / "m", whole.replace(value_bytes(7), array))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"general.architecture": 5}, "general.architecture is 5"),
        ({"llama.context_length": 0}, "llama.context_length is 0"),
        ({"llama.block_count": 100_000}, "from 1 to 512"),
        ({"llama.embedding_length": None}, "llama.embedding_length is None"),
        ({"llama.attention.head_count": 0}, "head_count is 0"),
        ({"llama.attention.head_count": 3, "llama.attention.head_count_kv": 2}, "no multiple"),
        ({"tokenizer.ggml.model": "none"}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a"]}, "has dimensions"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "1 tokens twice"),
        ({"tokenizer.ggml.tokens": "a"}, "no list of strings"),
        ({"split.count": 4}, "one part of a split model"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(GgufFault) as refusal:
        model_of(tmp_path / "m", **changes)
    assert said in str(refusal.value)


def test_a_long_array_of_numbers_is_counted_only(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m", {"kept": [1.5] * MAX_NUMBERS, "counted": [1] * (MAX_NUMBERS + 1)}, {"a": np.ones(4)})
    values = header_of(tmp_path / "m").values
    assert values["kept"].numbers == (1.5,) * MAX_NUMBERS
    assert values["counted"] == ArrayOf(MAX_NUMBERS + 1)


@pytest.mark.parametrize(
    ("spelled", "twice"),
    [
        (("a\0b", "a\0c"), 1),  # the engine reads both as "a"
        (("", "[EMPTY_0]"), 1),  # and gives an empty token this name
        (("", ""), 0),
    ],
)
def test_tokens_are_held_apart_as_the_engine_reads_them(tmp_path: Path, spelled: tuple[str, str], twice: int) -> None:
    tokens = [*spelled, *(f"t{place}" for place in range(2, len(TINY.tokens)))]
    if not twice:
        assert model_of(tmp_path / "m", **{"tokenizer.ggml.tokens": tokens}).vocab_size == len(tokens)
        return
    with pytest.raises(GgufFault, match="has 1 tokens twice"):
        model_of(tmp_path / "m", **{"tokenizer.ggml.tokens": tokens})


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(place=st.integers(0, 200), value=st.integers(0, 255))
def test_any_changed_byte_is_refused_or_read(tmp_path: Path, whole: bytes, place: int, value: int) -> None:
    spoiled = bytearray(whole)
    spoiled[place % len(whole)] = value
    try:
        header = header_of(tmp_path / "m", bytes(spoiled))
    except GgufFault:
        return
    assert all(tensor.end <= len(whole) for tensor in header.tensors.values())
