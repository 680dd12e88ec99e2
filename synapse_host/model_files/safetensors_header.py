"""The header of a safetensors file, read with distrust.

The file is a u64 little-endian header length, that many bytes of JSON, and the tensors end to end. Every number the
header states is held against the file before anything is mapped, so a reader that trusts the result cannot be led
outside the file or into another tensor. Standard library only: the host reads it before a worker exists, and the
worker reads it again from the descriptor it maps. Source of the rules: the published safetensors format.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

_LENGTH = struct.Struct("<Q")
#: Largest header the format allows, in bytes.
MAX_HEADER_BYTES = 100_000_000
#: Most dimensions a tensor may have; checkpoints use at most 5, numpy's own limit is 64.
MAX_RANK = 32
_MAX_DIMENSION = 2**63 - 1
_METADATA = "__metadata__"
_ENTRY_FIELDS = frozenset({"dtype", "shape", "data_offsets"})

#: Bytes of one element of each dtype; the format's types of less than a byte are not served.
DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


class SafetensorsFault(ValueError):
    """The file is not a whole, consistent safetensors file; the message holds the numbers that disagree."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its dtype by the format's name, its shape, and its bytes ``start`` to ``end`` *in the file*."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors_header(fd: int, size: int) -> dict[str, TensorEntry]:
    """The tensors of an open safetensors file of ``size`` bytes, by name in the order of the header.

    Reads by position, so the descriptor's own offset neither matters nor moves.

    Raises:
        SafetensorsFault: the header lies or the file is no safetensors file; see the message.
        OSError: the descriptor cannot be read.

    """
    length = _header_length(fd, size)
    header = _parse_header(_read_exactly(fd, length, _LENGTH.size))
    _check_metadata(header.pop(_METADATA, None))
    data_start = _LENGTH.size + length
    entries = {name: _entry(name, value, data_start, size) for name, value in header.items()}
    _check_coverage(entries, data_start, size)
    return entries


def _fault(message: str) -> NoReturn:
    raise SafetensorsFault(f"{message}; fetch the file again from where it was published")


def _shown(value: object) -> str:
    """A value as it may stand in a message: ASCII, and short whatever the file holds."""
    text = ascii(value)
    return text if len(text) <= 96 else f"{text[:93]}..."


def _header_length(fd: int, size: int) -> int:
    if size < _LENGTH.size:
        _fault(f"the file has {size} bytes, fewer than the {_LENGTH.size} of a safetensors header length")
    (length,) = _LENGTH.unpack(_read_exactly(fd, _LENGTH.size, 0))
    room = size - _LENGTH.size
    if length > room:
        _fault(f"the header claims {length} bytes, but only {room} of the file's {size} bytes follow its length")
    if length > MAX_HEADER_BYTES:
        _fault(f"the header claims {length} bytes, more than the {MAX_HEADER_BYTES} a safetensors header may have")
    return int(length)


def _read_exactly(fd: int, length: int, position: int) -> bytes:
    parts = []
    end = position + length
    while position < end:
        part = os.pread(fd, end - position, position)
        if not part:
            _fault(f"the file ends at byte {position} while bytes up to {end} were promised")
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _parse_header(raw: bytes) -> dict[str, Any]:
    if not raw.startswith(b"{"):
        _fault(f"the header of {len(raw)} bytes begins with {_shown(raw[:8])}, not with the brace of a JSON object")
    try:
        # Decoded here because json would also accept UTF-16 and UTF-32 bytes.
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_pairs)
    except SafetensorsFault:
        raise
    except (ValueError, RecursionError) as error:
        _fault(f"the header of {len(raw)} bytes is not JSON: {_shown(str(error))}")
    return cast("dict[str, Any]", header)


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            _fault(f"the header names {_shown(name)} more than once")
        unique[name] = value
    return unique


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        _fault(f"{_METADATA} must map names to strings, but is {_shown(metadata)}")


def _entry(name: str, value: object, data_start: int, size: int) -> TensorEntry:
    if not isinstance(value, dict) or set(value) != _ENTRY_FIELDS:
        _fault(f"tensor {_shown(name)} must have exactly dtype, shape and data_offsets, but is {_shown(value)}")
    dtype, shape = value["dtype"], value["shape"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        _fault(f"tensor {_shown(name)} has dtype {_shown(dtype)}, which is none of {', '.join(DTYPE_BYTES)}")
    if not _is_list_of_counts(shape) or len(shape) > MAX_RANK:
        _fault(f"tensor {_shown(name)} has shape {_shown(shape)}, which is no list of at most {MAX_RANK} sizes")
    begin, end = _offsets(name, value["data_offsets"], size - data_start)
    _check_span(name, dtype, shape, end - begin)
    return TensorEntry(dtype, tuple(shape), data_start + begin, data_start + end)


def _is_list_of_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n <= _MAX_DIMENSION for n in value)


def _offsets(name: str, offsets: Any, room: int) -> tuple[int, int]:
    if not _is_list_of_counts(offsets) or len(offsets) != 2:
        _fault(f"tensor {_shown(name)} has data_offsets {_shown(offsets)}, which are no two byte positions")
    begin, end = offsets
    if begin > end:
        _fault(f"tensor {_shown(name)} ends at byte {end} before it begins at byte {begin}")
    if end > room:
        _fault(f"tensor {_shown(name)} ends at byte {end}, past the {room} bytes of tensor data in the file")
    return begin, end


def _check_span(name: str, dtype: str, shape: list[int], span: int) -> None:
    needed = DTYPE_BYTES[dtype]
    for dimension in shape:
        needed *= dimension
    if needed != span:
        _fault(
            f"tensor {_shown(name)} of dtype {dtype} and shape {_shown(shape)} takes {_shown(needed)} bytes, "
            f"but its data_offsets span {span}"
        )


def _check_coverage(entries: Mapping[str, TensorEntry], data_start: int, size: int) -> None:
    """Tensors must lie end to end: no byte belongs to two of them, and none to no tensor."""
    covered = data_start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != covered:
            kind = "overlaps the tensor before it, which ends at" if entry.start < covered else "leaves a hole after"
            _fault(f"tensor {_shown(name)} begins at byte {entry.start - data_start} and {kind} {covered - data_start}")
        covered = entry.end
    if covered != size:
        _fault(f"the tensors cover {covered - data_start} bytes, but {size - data_start} follow the header")
