"""The index of a checkpoint cut into several safetensors files, read with distrust. Pure.

``model.safetensors.index.json`` maps each tensor to the file that holds it. The file names are used to open files, so
nothing but a plain name beside the index is taken.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

#: How the published name of an index ends.
INDEX_SUFFIX = ".safetensors.index.json"
#: An index holds one line per tensor; past these bytes it is not one.
MAX_INDEX_BYTES = 64 * 1024 * 1024
#: Files of one checkpoint; the largest published ones have fewer than 200.
MAX_FILES = 1024


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Which file of a checkpoint holds which tensors, by the published names of both."""

    tensors: Mapping[str, frozenset[str]]

    @property
    def files(self) -> tuple[str, ...]:
        """The files, in the order of their names."""
        return tuple(sorted(self.tensors))

    def check(self, file: str, found: Collection[str]) -> None:
        """Hold the tensors ``found`` in ``file`` against the index; raises ``ValueError`` naming one that differs."""
        promised = self.tensors[file]
        for name in sorted(promised - set(found)):
            raise ValueError(f"{file} has no tensor {name!r}, which the index promises; fetch both files again")
        for name in sorted(set(found) - promised):
            raise ValueError(f"{file} has a tensor {name!r}, which the index puts elsewhere; fetch both files again")


def read_shard_index(data: bytes) -> ShardIndex:
    """The index in ``data``; raises ``ValueError`` saying what is wrong with it."""
    if len(data) > MAX_INDEX_BYTES:
        raise ValueError(f"the index has {len(data)} bytes, more than {MAX_INDEX_BYTES}; use the published file")
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_each_once)
    except _NamedTwice as twice:
        raise ValueError(f"the index names {twice.name!r:.100} twice; use the published file") from None
    except (ValueError, RecursionError) as fault:
        raise ValueError(f"the index is not JSON ({fault}); use the published file") from None
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not places:
        raise ValueError("the index has no weight_map of tensors to files; use the published file")
    tensors: dict[str, set[str]] = {}
    for tensor, file in places.items():
        tensors.setdefault(_plain_name(file), set()).add(tensor)
    if len(tensors) > MAX_FILES:
        raise ValueError(f"the index names {len(tensors)} files, more than {MAX_FILES}; use the published file")
    return ShardIndex(MappingProxyType({file: frozenset(names) for file, names in tensors.items()}))


class _NamedTwice(Exception):
    """Of two places for one tensor a reader would take the last, and another reader perhaps the first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _NamedTwice(name)
        members[name] = value
    return members


def _plain_name(file: Any) -> str:
    if (
        not isinstance(file, str)
        or not file.endswith(".safetensors")
        or file.startswith(".")
        or not file.isprintable()
        or set(file) & set("/\\:")
    ):
        raise ValueError(f"the index names a file {file!r:.100}, which is no plain .safetensors name beside it")
    return file
