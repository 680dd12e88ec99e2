"""The header of a GGUF file, read with distrust.

The file is a magic word, a version, two counts, key-value pairs, tensor entries and, aligned, the tensors in their
order. Every count and offset is held against the file before anything is mapped: the engine that maps it answers some
lies with an abort of its process. Standard library only; the host reads it before a worker exists, and the worker
reads it again from the descriptor it hands to the engine. Source of the rules: the published GGUF format, versions 2
and 3, little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from synapse_host.model_files.gguf_cursor import Cursor, GgufFault

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: Most key-value pairs and tensors a header may state; published models have some hundreds of each.
MAX_PAIRS = 65_536
MAX_TENSORS = 65_536
#: Longest key or tensor name in bytes; the engine keeps 64 of a tensor's name.
MAX_NAME_BYTES = 256
#: Longest single string value in bytes: a chat template or a merges table in one piece stays far below.
MAX_STRING_BYTES = 16 * 1024 * 1024
#: Most dimensions of a tensor.
MAX_RANK = 4
#: Elements of an array of numbers that are kept; a longer one is counted only. An array of one number a block is kept.
MAX_NUMBERS = 512
DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 65_536
_MAX_DIMENSION = 2**63 - 1

_STRING, _ARRAY, _BOOL = 8, 9, 7
#: Value type -> how struct reads one little-endian element of it.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip

#: Tensor type -> elements of one block and bytes of one block. Types the engine has taken out are not in it.
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its type by number, its dimensions innermost first, and its bytes ``start`` to ``end``."""

    kind: int
    dims: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array value: how many elements; ``items`` holds strings, ``numbers`` as many numbers as ``MAX_NUMBERS``."""

    count: int
    items: tuple[bytes, ...] = ()
    numbers: tuple[int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the header says: values by key (numbers, bools, text, ``ArrayOf``) and tensors by name."""

    version: int
    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(fd: int, size: int) -> GgufHeader:
    """The header of an open GGUF file of ``size`` bytes; the descriptor's own offset neither matters nor moves.

    Raises:
        GgufFault: the header lies or the file is no GGUF file; see the message.
        OSError: the descriptor cannot be read.

    """
    cursor = Cursor(fd, size)
    version = _version(cursor)
    tensor_count = _count(cursor, "tensors", MAX_TENSORS)
    pair_count = _count(cursor, "key-value pairs", MAX_PAIRS)
    values = _pairs(cursor, pair_count)
    stated = _entries(cursor, tensor_count)
    tensors = _placed(stated, cursor.position, _alignment(values), size)
    return GgufHeader(version, values, tensors)


def _fault(message: str) -> NoReturn:
    raise GgufFault(f"{message}; fetch the file again from where it was published")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 96 else f"{text[:93]}..."


def _version(cursor: Cursor) -> int:
    magic = cursor.take(4)
    if magic != MAGIC:
        _fault(f"the file begins with {_shown(magic)}, not with {_shown(MAGIC)}")
    version: int = cursor.number("I")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        _fault(f"the file is GGUF version {version}; versions {known} in little-endian order are served")
    return version


def _count(cursor: Cursor, what: str, most: int) -> int:
    count: int = cursor.number("Q")
    if count > most:
        _fault(f"the header claims {count} {what}, more than the {most} a file may have")
    return count


def _pairs(cursor: Cursor, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(count):
        key = _name(cursor, "a key")
        if key in values:
            _fault(f"the header has the key {_shown(key)} more than once")
        values[key] = _value(cursor, key, cursor.number("I"))
    return values


def _name(cursor: Cursor, what: str) -> str:
    raw = cursor.string(MAX_NAME_BYTES)
    if not raw:
        _fault(f"{what} before byte {cursor.position} is empty")
    if b"\0" in raw:
        # The engine reads it up to there, and would find a key or tensor that nobody looked at here.
        _fault(f"{what} before byte {cursor.position} is {_shown(raw)}, with a NUL in it")
    return _text(raw)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        _fault(f"{_shown(raw)} is no UTF-8")


def _value(cursor: Cursor, key: str, kind: int) -> Any:
    if kind == _STRING:
        return _text(cursor.string(MAX_STRING_BYTES))
    if kind == _ARRAY:
        return _array(cursor, key)
    code = _SCALARS.get(kind)
    if code is None:
        _fault(f"key {_shown(key)} has a value of type {kind}, which GGUF does not have")
    value = cursor.number(code)
    if kind == _BOOL and value > 1:
        _fault(f"key {_shown(key)} is a bool of {value}")
    return bool(value) if kind == _BOOL else value


def _array(cursor: Cursor, key: str) -> ArrayOf:
    kind, count = cursor.number("I"), cursor.number("Q")
    if kind == _STRING:
        # Each string has eight bytes of length at least.
        cursor.require(count * 8, f"the {count} strings of {_shown(key)}")
        return ArrayOf(count, tuple(cursor.string(MAX_STRING_BYTES) for _ in range(count)))
    code = _SCALARS.get(kind)
    if code is None:
        _fault(f"key {_shown(key)} is an array of type {kind}, which is served neither here nor by the engine")
    width = struct.calcsize(f"<{code}")
    if count <= MAX_NUMBERS:
        return ArrayOf(count, numbers=struct.unpack(f"<{count}{code}", cursor.take(count * width)))
    cursor.skip(count * width, f"the {count} elements of {_shown(key)}")
    return ArrayOf(count)


def _entries(cursor: Cursor, count: int) -> dict[str, tuple[int, tuple[int, ...], int]]:
    entries: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for _ in range(count):
        name = _name(cursor, "a tensor's name")
        if name in entries:
            _fault(f"the header has the tensor {_shown(name)} more than once")
        rank = cursor.number("I")
        if rank > MAX_RANK:
            _fault(f"tensor {_shown(name)} has {rank} dimensions and may have {MAX_RANK}")
        dims = tuple(cursor.number("Q") for _ in range(rank))
        entries[name] = (cursor.number("I"), dims, cursor.number("Q"))
    return entries


def _alignment(values: Mapping[str, Any]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        _fault(f"general.alignment is {_shown(alignment)}, which is no power of two from 8 to {_MAX_ALIGNMENT}")
    return alignment


def _placed(
    entries: Mapping[str, tuple[int, tuple[int, ...], int]], position: int, alignment: int, size: int
) -> dict[str, GgufTensor]:
    """Tensors must lie one after the other in the order of the header, each aligned, all inside the file."""
    tensors: dict[str, GgufTensor] = {}
    data_start = free = position + -position % alignment
    for name, (kind, dims, offset) in entries.items():
        length = _bytes_of(name, kind, dims)
        start = data_start + offset
        if start != free:
            _fault(f"tensor {_shown(name)} begins at byte {offset} of the data, not at {free - data_start}")
        if start + length > size:
            _fault(f"tensor {_shown(name)} ends at byte {start + length}, past the {size} bytes of the file")
        tensors[name] = GgufTensor(kind, dims, start, start + length)
        free = start + length + -length % alignment
    return tensors


def _bytes_of(name: str, kind: int, dims: tuple[int, ...]) -> int:
    block = BLOCKS.get(kind)
    if block is None:
        _fault(f"tensor {_shown(name)} has type {kind}, which is not served")
    elements, block_bytes = block
    row = dims[0] if dims else 1
    if row % elements:
        _fault(f"tensor {_shown(name)} has rows of {row} elements, no multiple of the {elements} of a block")
    total = 1
    for dim in dims:
        total *= dim
    if not 0 < total <= _MAX_DIMENSION:
        _fault(f"tensor {_shown(name)} has dimensions {_shown(list(dims))}, which no file can hold")
    return total // elements * block_bytes
