"""A checkpoint's tensors on the device, each in the form the kernels that use it want, put there when first used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops.rope_table import rope_table
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_vulkan.arena import aligned
from synapse_vulkan.binding import DeviceMemoryFull
from synapse_vulkan.device import Buffer, Device
from synapse_vulkan.product import COLUMN_STEP, DEPTH_STEP, padded
from synapse_vulkan.recording import Stored
from synapse_vulkan.upload import Uploader

Float32: TypeAlias = npt.NDArray[np.float32]

#: Bytes of one allocation for weights; a larger tensor gets one of its own.
BLOCK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix for products: [depth, columns], both filled up with zeros, ``quads`` of four columns a row."""

    stored: Stored
    columns: int
    depth: int
    quads: int


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table as the checkpoint has it, in parts of ``part_rows`` rows, each row filled up to ``stride`` numbers."""

    parts: tuple[Stored, ...]
    part_rows: int
    rows: int
    width: int
    stride: int


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A table in one piece of float32, rows filled up to ``stride`` numbers."""

    stored: Stored
    rows: int
    width: int
    stride: int


class WeightMemory:
    """The tensors of one model on one device; ``half`` stores matrices and tables in float16.

    Either is read through texel views, which every device widens to float32 as it reads: no feature is needed.
    """

    def __init__(self, device: Device, source: CheckpointWeights, *, max_tokens: int, half: bool = False) -> None:
        self._device = device
        self._source = source
        self._uploader = Uploader(device)
        self.max_tokens = max_tokens
        self.half = half
        self._blocks: list[Buffer] = []
        self._room = 0
        self._views: list[Any] = []
        self._made: dict[object, Any] = {}

    def weight(self, name: str, shape: Sequence[int]) -> DeviceWeight:
        """The tensor ``name``; raises ``ValueError`` naming it and both shapes when they differ."""
        return DeviceWeight(self, self._source.shaped_entry(name, shape))

    def angles(self, theta: float, d: int, scaling: float | None) -> Stored:
        """Cosines and sines of every position up to ``max_tokens``, [2, max_tokens, d / 2]."""
        key = ("angles", theta, d, scaling)
        if key not in self._made:
            self._made[key] = self.put(rope_table(theta, d, scaling, self.max_tokens))
        found: Stored = self._made[key]
        return found

    def matrix(self, entry: StoredTensor, rows: Sequence[int] | None) -> StoredMatrix:
        """``entry`` [columns, depth], or those of its rows, stored for products."""
        key = ("matrix", entry.name, None if rows is None else tuple(rows))
        if key not in self._made:
            self._made[key] = self._put_matrix(entry, rows)
        found: StoredMatrix = self._made[key]
        return found

    def table(self, entry: StoredTensor) -> StoredTable:
        """``entry`` [rows, width] stored for taking rows, in as many parts as the device's limits ask for."""
        key = ("table", entry.name)
        if key not in self._made:
            self._made[key] = self._put_table(entry)
        found: StoredTable = self._made[key]
        return found

    def plain_rows(self, entry: StoredTensor) -> StoredRows:
        """``entry`` [rows, width] as an operand of its own."""
        key = ("rows", entry.name)
        if key not in self._made:
            array = self._numbers(entry)
            rows, width = array.shape
            filled = self._filled(array, (rows, padded(width, 4)))
            self._made[key] = StoredRows(self.put(filled), rows, width, filled.shape[1])
        found: StoredRows = self._made[key]
        return found

    def vector(self, entry: StoredTensor) -> Stored:
        """``entry`` [width], filled up so that kernels may read it four numbers at a time."""
        key = ("vector", entry.name)
        if key not in self._made:
            array = self._numbers(entry)
            self._made[key] = self.put(self._filled(array, (padded(array.shape[0], COLUMN_STEP),)))
        found: Stored = self._made[key]
        return found

    def close(self) -> None:
        """Free everything on the device and forget the checkpoint."""
        for view in self._views:
            self._device.destroy("BufferView", view)
        for block in self._blocks:
            self._device.free(block)
        self._views.clear()
        self._blocks.clear()
        self._made.clear()
        self._uploader.close()
        self._source.close()

    def _put_matrix(self, entry: StoredTensor, rows: Sequence[int] | None) -> StoredMatrix:
        array = self._numbers(entry)
        if rows is not None:
            array = array[list(rows)]
        columns, depth = array.shape
        wide = padded(columns, COLUMN_STEP)
        filled = self._filled(array.T, (padded(depth, DEPTH_STEP), wide))
        most = 4 * self._device.facts.limits.texels
        if filled.size > most:
            raise DeviceMemoryFull(
                f"the matrix {entry.name} has {columns} x {depth} numbers and {self._device.facts.name!r} reads {most} "
                "of one buffer; load a smaller model"
            )
        return StoredMatrix(self.put(self._stored_form(entry, filled), texels=True), columns, depth, wide // 4)

    def _put_table(self, entry: StoredTensor) -> StoredTable:
        array = self._numbers(entry)
        rows, width = array.shape
        limits, stride = self._device.facts.limits, padded(width, 4)
        item = 2 if self.half else 4
        part_rows = min(rows, 4 * limits.texels // stride, limits.allocation_bytes // (stride * item))
        parts = []
        for first in range(0, rows, part_rows):
            part = array[first : first + part_rows]
            filled = self._filled(part, (len(part), stride))
            parts.append(self.put(self._stored_form(entry, filled), texels=True))
        return StoredTable(tuple(parts), part_rows, rows, width, stride)

    def _numbers(self, entry: StoredTensor) -> Float32:
        return entry.to_float32()

    def _filled(self, array: Float32, shape: tuple[int, ...]) -> Float32:
        if array.shape == shape:
            return np.ascontiguousarray(array)
        filled = np.zeros(shape, dtype=np.float32)
        filled[tuple(slice(size) for size in array.shape)] = array
        return filled

    def _stored_form(self, entry: StoredTensor, array: Float32) -> npt.NDArray[Any]:
        if not self.half:
            return array
        with np.errstate(over="ignore"):
            stored = array.astype(np.float16)
        if np.isinf(stored).any() and not np.isinf(array).any():
            raise ValueError(
                f"the tensor {entry.name} has numbers up to {np.abs(array).max():g}, past the 65504 of float16; load "
                "the model with dtype f32"
            )
        return stored

    def put(self, array: npt.NDArray[Any], *, texels: bool = False) -> Stored:
        """Any array on the device, with a texel view over it if kernels are to read it four numbers at a time."""
        block, offset = self._place(array.nbytes)
        self._uploader.put(block, offset, array)
        view = None
        if texels:
            view = self._device.texel_view(block, offset, array.nbytes, half=array.dtype == np.float16)
            self._views.append(view)
        return Stored(block, offset, array.nbytes, view)

    def _place(self, size: int) -> tuple[Buffer, int]:
        needed = aligned(size)
        if needed > self._room:
            block_bytes = min(BLOCK_BYTES, self._device.facts.limits.allocation_bytes)
            self._blocks.append(self._new_block(max(needed, block_bytes)))
            self._room = self._blocks[-1].size
        block = self._blocks[-1]
        offset = block.size - self._room
        self._room -= needed
        return block, offset

    def _new_block(self, size: int) -> Buffer:
        return self._device.device_buffer(size)


@dataclass(frozen=True, slots=True)
class DeviceWeight:
    """The handle of one tensor: stored in whatever form it is used in, once for each."""

    memory: WeightMemory
    entry: StoredTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """As the checkpoint has it."""
        return self.entry.shape

    def matrix(self, rows: Sequence[int] | None = None) -> StoredMatrix:
        """For products, whole or the named rows of it."""
        return self.memory.matrix(self.entry, rows)

    def table(self) -> StoredTable:
        """For taking rows."""
        return self.memory.table(self.entry)

    def plain_rows(self) -> StoredRows:
        """For adding rows of it."""
        return self.memory.plain_rows(self.entry)

    def vector(self) -> Stored:
        """For norms and biases."""
        return self.memory.vector(self.entry)
