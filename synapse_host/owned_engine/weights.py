"""The tensors of one checkpoint, mapped from the descriptor whose bytes were verified.

Nothing is copied or converted until a tensor is asked for in float32: numpy has no bfloat16, so an entry is the
checkpoint's dtype, its shape and its raw bytes. The path of the file is never opened here.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.model_files.safetensors_header import TensorEntry, read_safetensors_header
from synapse_host.ops.weight_source import check_weight_shape

#: Prefixes under which publishers store the same encoder; one of them is stripped, once.
PREFIXES = ("model.", "bert.", "roberta.")

#: numpy's types of the floating dtypes a checkpoint may hold; BF16 stays raw 16-bit words.
_STORED: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as the checkpoint holds it; ``data`` is a view of the mapping, not to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    def raw(self) -> npt.NDArray[Any]:
        """The stored numbers, uncopied where their bytes are aligned; BF16 as unsigned 16-bit words.

        Raises:
            ValueError: the dtype is not a floating one.

        """
        stored = _STORED.get(self.dtype)
        if stored is None:
            raise ValueError(
                f"tensor {self.name!r} is stored as {self.dtype}, not as one of {', '.join(_STORED)}; "
                "convert the checkpoint"
            )
        array: npt.NDArray[Any] = np.frombuffer(self.data, dtype=stored).reshape(self.shape)
        return array if array.flags.aligned else array.copy()

    def to_float32(self) -> npt.NDArray[np.float32]:
        """The numbers as float32; exact for BF16 and F16, rounded for F64."""
        raw = self.raw()
        if self.dtype == "BF16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32, copy=False)


class CheckpointWeights:
    """Every tensor of a safetensors file, by name without its publisher's prefix."""

    def __init__(self, tensors: Mapping[str, StoredTensor], mapping: mmap.mmap | None = None) -> None:
        self._tensors = dict(tensors)
        self._mapping = mapping

    @classmethod
    def open(cls, fd: int, size: int) -> CheckpointWeights:
        """Map ``size`` bytes of the open descriptor; the descriptor may be closed afterwards.

        Raises:
            ValueError: the header lies about the file (``SafetensorsFault``), or two tensors share a name.
            OSError: the descriptor cannot be mapped.

        """
        header = read_safetensors_header(fd, size)
        # Copy-on-write: compilers take constants only from writable memory. Nobody writes, so nothing is copied.
        mapping = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        return cls(_stored(header, memoryview(mapping)), mapping)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def entry(self, name: str) -> StoredTensor:
        """The stored tensor; raises ``KeyError`` when the checkpoint has none of that name."""
        return self._tensors[name]

    def shaped_entry(self, name: str, shape: Sequence[int]) -> StoredTensor:
        """The stored tensor, held against the shape the config implies.

        Raises:
            ValueError: the checkpoint has no such tensor, or one of another shape; the message names both shapes.

        """
        found = self._tensors.get(name)
        if found is None:
            raise ValueError(f"the checkpoint has no tensor {name!r} (shape {tuple(shape)} is needed)")
        check_weight_shape(name, shape, found.shape)
        return found

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor as float32, a view of the file where it is stored so; ``KeyError`` when there is none."""
        return self.entry(name).to_float32()

    def close(self) -> None:
        """Forget every tensor; the file stays mapped until the last array over it is gone."""
        self._tensors.clear()
        self._mapping = None


def _stored(header: Mapping[str, TensorEntry], view: memoryview) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        short = _without_prefix(name)
        if short in tensors:
            raise ValueError(f"tensors {name!r} and {tensors[short].name!r} are both called {short!r} here")
        tensors[short] = StoredTensor(name, entry.dtype, entry.shape, view[entry.start : entry.end])
    return tensors


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
