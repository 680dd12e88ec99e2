"""Model directories with one thing wrong, made from a good one."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from synapse_host.testing.models.tiny_models import TinyBert, write_safetensors

#: Changes one thing in the directory it is given.
Spoil = Callable[[Path], None]
_LENGTH = struct.Struct("<Q")


def spoiled_copy(good: Path, target: Path, spoil: Spoil) -> Path:
    """A copy of the model in ``good`` at ``target``, spoiled."""
    shutil.copytree(good, target)
    spoil(target)
    return target


def with_config(**changes: Any) -> Spoil:
    """Other values in config.json; a change to ``...`` takes the key away."""

    def spoil(directory: Path) -> None:
        path = directory / "config.json"
        config = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))

    return spoil


def with_file(name: str, content: bytes) -> Spoil:
    """One file with other content."""
    return lambda directory: void(directory.joinpath(name).write_bytes(content))


def without_file(name: str) -> Spoil:
    """One file missing."""
    return lambda directory: directory.joinpath(name).unlink()


def with_header(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """A safetensors header changed in place by ``change``, over the same tensor data."""

    def spoil(directory: Path) -> None:
        path = directory / "model.safetensors"
        data = path.read_bytes()
        (length,) = _LENGTH.unpack_from(data)
        header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        change(header)
        path.write_bytes(safetensors_bytes(json.dumps(header).encode(), data[_LENGTH.size + length :]))

    return spoil


def with_tensors(model: TinyBert, change: Callable[[dict[str, Any]], object]) -> Spoil:
    """A sound safetensors file whose tensors are those of ``model`` after ``change``."""

    def spoil(directory: Path) -> None:
        tensors: dict[str, Any] = dict(model.tensors())
        change(tensors)
        write_safetensors(directory / "model.safetensors", tensors)

    return spoil


def safetensors_bytes(header: bytes, body: bytes, *, length: int | None = None) -> bytes:
    """A file with this header and body, its header length told as ``length``."""
    return _LENGTH.pack(len(header) if length is None else length) + header + body


def entry(header: Mapping[str, Any], index: int = 0) -> dict[str, Any]:
    """The entry of the ``index``-th tensor in the order of the data."""
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    found: dict[str, Any] = sorted(tensors, key=lambda value: value["data_offsets"])[index]
    return found


def void(_: object) -> None:
    """Nothing, of anything."""
