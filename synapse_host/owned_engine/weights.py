"""The tensors of one checkpoint, taken from the descriptors whose bytes were verified.

The bytes are read once into memory of our own. A mapping of the file would follow whoever writes into it: numbers would
move under their fingerprint, and a file cut short would kill the process. Nothing is converted until a tensor is asked
for in float32: numpy has no bfloat16, so an entry is the checkpoint's dtype, its shape and its raw bytes. The path of
the file is never opened here.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from synapse_host.model_files.safetensors_header import TensorEntry, read_safetensors_header
from synapse_host.model_files.shard_index import ShardIndex
from synapse_host.ops.weight_source import check_weight_shape

#: Prefixes under which publishers store the same encoder; one of them is stripped, once.
PREFIXES = ("model.", "bert.", "roberta.")

#: Bytes read at once: small enough to stay in the processor's cache on their way.
_READ_BYTES = 1 << 20

#: numpy's types of the floating dtypes a checkpoint may hold; BF16 stays raw 16-bit words.
_STORED: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as the checkpoint holds it; ``data`` is a view of memory that is not to be written."""

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
    """Every tensor of one safetensors file or several, by name without its publisher's prefix."""

    def __init__(self, tensors: Mapping[str, StoredTensor], memories: Sequence[mmap.mmap] = ()) -> None:
        self._tensors = dict(tensors)
        self._memories = tuple(memories)

    @classmethod
    def of_arrays(cls, tensors: Mapping[str, npt.NDArray[np.float32]]) -> CheckpointWeights:
        """A checkpoint that is in memory already, in float32; prefixes are stripped as from a file."""
        held = {name: np.ascontiguousarray(array, dtype="<f4") for name, array in tensors.items()}
        stored = (StoredTensor(name, "F32", array.shape, array.data.cast("B")) for name, array in held.items())
        return cls({_without_prefix(tensor.name): tensor for tensor in stored})

    @classmethod
    def open(cls, fd: int, size: int) -> CheckpointWeights:
        """Read ``size`` bytes of the open descriptor; the descriptor may be closed afterwards.

        Raises:
            ValueError: the header lies about the file (``SafetensorsFault``), or two tensors share a name.
            OSError: the descriptor cannot be read.

        """
        tensors: dict[str, StoredTensor] = {}
        return cls(tensors, [_read_into(tensors, read_safetensors_header(fd, size), fd, size)])

    @classmethod
    def open_sharded(cls, index: ShardIndex, descriptors: Mapping[str, int]) -> CheckpointWeights:
        """Read every file of ``index`` from ``descriptors``, by file name; they may be closed afterwards.

        Raises:
            ValueError: a descriptor is missing, a header lies, a file does not hold what the index says, or two tensors
                share a name; the message names the file.
            OSError: a descriptor cannot be read.

        """
        tensors: dict[str, StoredTensor] = {}
        return cls(tensors, [_read_shard(tensors, index, file, descriptors.get(file)) for file in index.files])

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
        """Forget every tensor; the memory stays until the last array over it is gone."""
        self._tensors.clear()
        self._memories = ()


def _fill(memory: mmap.mmap, fd: int) -> None:
    """Read the file from its start into ``memory``; raises ``ValueError`` when it is shorter."""
    position = 0
    while position < len(memory):
        part = os.pread(fd, _READ_BYTES, position)
        if not part:
            raise ValueError(f"the file ends at byte {position} of {len(memory)}; load it when nothing writes to it")
        memory[position : position + len(part)] = part[: len(memory) - position]
        position += len(part)


def _read_shard(tensors: dict[str, StoredTensor], index: ShardIndex, file: str, fd: int | None) -> mmap.mmap:
    if fd is None:
        raise ValueError(f"{file} is named by the index and was not given; load it with every file beside it")
    size = os.fstat(fd).st_size
    try:
        header = read_safetensors_header(fd, size)
        index.check(file, header)
        return _read_into(tensors, header, fd, size)
    except ValueError as fault:
        raise ValueError(f"{file}: {fault}") from fault


def _read_into(tensors: dict[str, StoredTensor], header: Mapping[str, TensorEntry], fd: int, size: int) -> mmap.mmap:
    """Add the tensors of a file to ``tensors``; returns the memory they are views of."""
    # Anonymous and page-aligned; writable, because compilers take constants only from writable memory.
    memory = mmap.mmap(-1, size)
    _fill(memory, fd)
    view = memoryview(memory)
    for name, entry in header.items():
        short = _without_prefix(name)
        if short in tensors:
            raise ValueError(f"tensors {name!r} and {tensors[short].name!r} are both called {short!r} here")
        tensors[short] = StoredTensor(name, entry.dtype, entry.shape, view[entry.start : entry.end])
    return memory


def _without_prefix(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name
