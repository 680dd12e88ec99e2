"""Safetensors headers that lie are refused with the numbers that disagree."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synapse_host.model_files.safetensors_header import (
    DTYPE_BYTES,
    MAX_HEADER_BYTES,
    SafetensorsFault,
    TensorEntry,
    read_safetensors_header,
)


def read(content: bytes, size: int | None = None) -> dict[str, TensorEntry]:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        return read_safetensors_header(file.fileno(), len(content) if size is None else size)


def file_of(header: Any, data: bytes = b"", *, claimed: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if claimed is None else claimed) + raw + data


def tensor(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


def test_a_whole_file_is_read_with_positions_in_the_file() -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "b": tensor(8, 20, [2, 3], "BF16"),
        "a": tensor(0, 8, [], "F64"),
        "empty": tensor(20, 20, [0, 4], "F32"),
    }
    content = file_of(header, bytes(20))
    start = len(content) - 20
    assert read(content) == {
        "b": TensorEntry("BF16", (2, 3), start + 8, start + 20),
        "a": TensorEntry("F64", (), start, start + 8),
        "empty": TensorEntry("F32", (0, 4), start + 20, start + 20),
    }
    assert list(read(content)) == ["b", "a", "empty"]


def test_padding_blanks_and_no_tensors_at_all_are_legal() -> None:
    assert read(file_of(b"{}      ")) == {}


def test_the_descriptor_keeps_its_own_offset() -> None:
    content = file_of({"a": tensor(0, 4)}, bytes(4))
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        file.seek(3)
        read_safetensors_header(file.fileno(), len(content))
        assert file.tell() == 3


LIES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "0 bytes, fewer than the 8"),
    "half a length": (b"\x01\x00\x00", "3 bytes, fewer than the 8"),
    "header longer than the file": (file_of(b"{}", claimed=1000), "claims 1000 bytes, but only 2 of the file's 10"),
    "header of 2^64 - 1 bytes": (b"\xff" * 8 + b"{}", "claims 18446744073709551615 bytes, but only 2"),
    "no header": (struct.pack("<Q", 0) + b"data", "header of 0 bytes begins with b''"),
    "not JSON": (file_of(b"{oops"), "header of 5 bytes is not JSON"),
    "a list": (file_of([1]), "begins with b'[1]', not with the brace"),
    "leading blank": (file_of(b" {}"), "not with the brace"),
    "not UTF-8": (file_of(b'{"\xff": 1}'), "is not JSON"),
    "UTF-16": (file_of("{}".encode("utf-16-le")), "is not JSON"),
    "nested too deep": (file_of(b'{"a":' + b"[" * 200_000), "is not JSON"),
    "number of 5000 digits": (file_of(b'{"a":' + b"9" * 5000 + b"}"), "is not JSON"),
    "duplicate tensor": (file_of(b'{"w": 1, "w": 2}'), "names 'w' more than once"),
    "duplicate field": (
        file_of(b'{"w": {"dtype": "U8", "dtype": "I8", "shape": [0], "data_offsets": [0, 0]}}'),
        "names 'dtype' more than once",
    ),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}}), "must map names to strings, but is {'a': 1}"),
    "metadata list": (file_of({"__metadata__": []}), "must map names to strings, but is []"),
    "tensor is a number": (file_of({"w": 3}), "tensor 'w' must have exactly"),
    "no shape": (file_of({"w": {"dtype": "U8", "data_offsets": [0, 0]}}), "must have exactly dtype, shape"),
    "extra field": (file_of({"w": tensor(0, 0) | {"x": 1}}), "must have exactly dtype, shape"),
    "unknown dtype": (file_of({"w": tensor(0, 4, [1], "F31")}, bytes(4)), "has dtype 'F31', which is none of BOOL"),
    "dtype list": (file_of({"w": tensor(0, 0) | {"dtype": ["U8"]}}), "has dtype ['U8']"),
    "negative size": (file_of({"w": tensor(0, 4, [-4])}, bytes(4)), "has shape [-4]"),
    "fractional size": (file_of({"w": tensor(0, 4, [4.0])}, bytes(4)), "has shape [4.0]"),
    "boolean size": (file_of({"w": tensor(0, 1, [True])}, bytes(1)), "has shape [True]"),
    "size past 64 bits": (file_of({"w": tensor(0, 0, [2**63])}), "has shape [9223372036854775808]"),
    "too many dimensions": (file_of({"w": tensor(0, 1, [1] * 33)}, bytes(1)), "no list of at most 32 sizes"),
    "shape is a string": (file_of({"w": tensor(0, 4) | {"shape": "4"}}, bytes(4)), "has shape '4'"),
    "three offsets": (file_of({"w": tensor(0, 4) | {"data_offsets": [0, 4, 4]}}, bytes(4)), "[0, 4, 4], which are no"),
    "negative offset": (file_of({"w": tensor(0, 4) | {"data_offsets": [-1, 3]}}, bytes(4)), "data_offsets [-1, 3]"),
    "ends before it begins": (file_of({"w": tensor(4, 0, [0])}, bytes(4)), "ends at byte 0 before it begins at byte 4"),
    "past the data": (file_of({"w": tensor(0, 9)}, bytes(8)), "ends at byte 9, past the 8 bytes"),
    "span too short": (
        file_of({"w": tensor(0, 4, [2, 3], "F32")}, bytes(4)),
        "dtype F32 and shape [2, 3] takes 24 bytes, but its data_offsets span 4",
    ),
    "span too long": (file_of({"w": tensor(0, 8, [1], "F32")}, bytes(8)), "takes 4 bytes, but its data_offsets span 8"),
    "product past 64 bits": (
        file_of({"w": tensor(0, 0, [2**62, 2**62], "F64")}),
        f"takes {2**127} bytes, but its data_offsets span 0",
    ),
    "overlap": (
        file_of({"a": tensor(0, 4), "b": tensor(2, 6)}, bytes(6)),
        "'b' begins at byte 2 and overlaps the tensor before it, which ends at 4",
    ),
    "same bytes twice": (file_of({"a": tensor(0, 4), "b": tensor(0, 4)}, bytes(4)), "begins at byte 0 and overlaps"),
    "hole": (file_of({"a": tensor(0, 4), "b": tensor(6, 8)}, bytes(8)), "begins at byte 6 and leaves a hole after 4"),
    "hole at the start": (file_of({"a": tensor(1, 4)}, bytes(4)), "begins at byte 1 and leaves a hole after 0"),
    "bytes of no tensor": (file_of({"a": tensor(0, 4)}, bytes(7)), "cover 4 bytes, but 7 follow the header"),
    "bytes but no tensors": (file_of({}, bytes(7)), "cover 0 bytes, but 7 follow the header"),
}


@pytest.mark.parametrize(("content", "fault"), LIES.values(), ids=LIES)
def test_a_lie_is_refused_with_the_numbers(content: bytes, fault: str) -> None:
    with pytest.raises(SafetensorsFault) as caught:
        read(content)
    assert fault in str(caught.value)
    assert str(caught.value).endswith("fetch the file again from where it was published")


def test_a_header_above_the_formats_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(SafetensorsFault, match=f"claims {MAX_HEADER_BYTES + 1} bytes, more than"):
        read(struct.pack("<Q", MAX_HEADER_BYTES + 1), size=MAX_HEADER_BYTES + 100)


def test_a_file_shorter_than_it_was_said_to_be_is_refused() -> None:
    with pytest.raises(SafetensorsFault, match="the file ends at byte 10 while bytes up to 58"):
        read(file_of(b"{}", claimed=50), size=100)


def test_a_hostile_name_stays_short_and_printable_in_the_message() -> None:
    name = "\ud800\n" + "x" * 100_000
    with pytest.raises(SafetensorsFault) as caught:
        read(file_of({name: 3}))
    assert len(str(caught.value)) < 400
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)


shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), shapes), max_size=6)


def _laid_out(parts: list[tuple[str, list[int]]]) -> tuple[dict[str, Any], int]:
    header, position = {}, 0
    for index, (dtype, shape) in enumerate(parts):
        size = DTYPE_BYTES[dtype]
        for dimension in shape:
            size *= dimension
        header[f"t{index}"] = tensor(position, position + size, shape, dtype)
        position += size
    return header, position


@given(tensors)
def test_every_whole_file_is_accepted_and_covers_its_data(parts: list[tuple[str, list[int]]]) -> None:
    header, data = _laid_out(parts)
    content = file_of(header, bytes(data))
    entries = read(content)
    assert [(entry.dtype, list(entry.shape)) for entry in entries.values()] == parts
    assert sum(entry.end - entry.start for entry in entries.values()) == data


@settings(max_examples=300)
@given(tensors, st.data())
def test_no_change_of_one_byte_leads_outside_the_file(parts: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    header, size = _laid_out(parts)
    content = bytearray(file_of(header, bytes(size)))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        entries = read(bytes(content))
    except SafetensorsFault:
        return
    for entry in entries.values():
        assert 8 <= entry.start <= entry.end <= len(content)


@given(st.binary(max_size=200))
def test_noise_is_refused_typed(content: bytes) -> None:
    with contextlib.suppress(SafetensorsFault):
        read(content)
