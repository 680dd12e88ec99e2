"""Writes GGUF files: typed key-value pairs and tensors, as the published format says (version 3, little endian)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float32: TypeAlias = npt.NDArray[np.float32]

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_F32_TENSOR, _F16_TENSOR = 0, 1
#: Tables the engine adds to rows as they are; published files keep them whole.
_KEPT_WHOLE = frozenset({"position_embd.weight", "token_types.weight"})


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Mapping[str, Float32], *, halved: bool = False) -> None:
    """Write one file; ``halved`` stores matrices in half precision, vectors stay whole.

    A value is text, a bool, an int (stored unsigned), a float, or a list of text, ints or floats.
    """
    stored = {name: _stored(tensor, halved and name not in _KEPT_WHOLE) for name, tensor in tensors.items()}
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(values))]
    head += [text(key) + value_bytes(value) for key, value in values.items()]
    offset = 0
    for name, (kind, data) in stored.items():
        dims = tensors[name].shape[::-1]
        head.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        offset += len(data) + -len(data) % ALIGNMENT
    header = b"".join(head)
    body = b"".join(data + bytes(-len(data) % ALIGNMENT) for _, data in stored.values())
    path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + body)


def text(value: str | bytes) -> bytes:
    """A string of the format: its length in bytes, then the bytes."""
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    """One value with its type."""
    if isinstance(value, list):
        kind = _kind(value[0])
        kind = _I32 if kind == _U32 else kind
        return struct.pack("<IIQ", _ARRAY, kind, len(value)) + b"".join(_plain(kind, item) for item in value)
    kind = _kind(value)
    return struct.pack("<I", kind) + _plain(kind, value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, str):
        return _STRING
    return _U32 if isinstance(value, int) else _F32


def _plain(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return text(value)
    form = {_U32: "<I", _I32: "<i", _F32: "<f", _BOOL: "<?"}[kind]
    return struct.pack(form, value)


def _stored(tensor: Float32, halved: bool) -> tuple[int, bytes]:
    if halved and tensor.ndim > 1:
        return _F16_TENSOR, tensor.astype("<f2").tobytes()
    return _F32_TENSOR, tensor.astype("<f4").tobytes()
