"""The 31 tensor operations over a device: cuBLAS for products, our kernels for the rest.

Handles are C-contiguous arrays in the activation type, but for the parts of a split, which are places in the array they
were cut from. Pooled rows of a float16 lane are float32: they are the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from synapse_host.hookspecs import DType
from synapse_host.ops import shape_rules as rules
from synapse_host.ops.reference_attention import rope_table
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_owned_cuda.device import Array, Device

#: Codes of the activations in ``kernels.cu``.
_ACTS = {None: 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "tanh": 4, "relu": 5}
_GELUS = {"erf": 1, "tanh": 2}
_WARP, _LONGEST_BLOCK = 32, 256
#: Queries of a block and threads of it, as ``kernels.cu`` lays attention out.
_TILE_QUERIES, _ATTENTION_BLOCK = 32, 128
#: Widths of a head the attention kernels are compiled for.
_HEAD_WIDTHS = (64, 128)
#: Keys and values by layer.
Cache: TypeAlias = dict[int, tuple[Array, Array]]


class ShapedWeights(Protocol):
    """Where the arrays of a checkpoint come from."""

    def shaped(self, name: str, shape: Sequence[int]) -> Array:
        """The array ``name`` of exactly ``shape``, in the lane's type; raises ``ValueError`` otherwise."""


@dataclass(frozen=True, slots=True)
class Part:
    """Features ``offset`` up to ``offset + size`` of every row of ``whole``."""

    whole: Array
    offset: int
    size: int


class CudaOps(TensorOps):
    """Operations over ``weights`` on ``device``; rope tables reach ``max_tokens`` positions."""

    def __init__(self, weights: ShapedWeights, device: Device, *, max_tokens: int, dtype: DType) -> None:
        self._weights = weights
        self._device = device
        self._max_tokens = max_tokens
        self._dtype = {"f32": device.xp.float32, "f16": device.xp.float16}[dtype]
        self._tables: dict[tuple[float, int, float | None], Array] = {}

    # --- tables ----------------------------------------------------------------------------------------------

    def weight(self, name: str, shape: Sequence[int]) -> Array:
        return self._weights.shaped(name, shape)

    def embedding(self, ids: Array, table: Array) -> Array:
        out = self._room((*ids.shape, table.shape[1]), table.dtype)
        self._by_row("embedding", out, out, table, ids, table.shape[1])
        return out

    def positions(self, batch: Batch, table: Array, first: int = 0) -> Array:
        begin = first + batch.start
        end = begin + batch.ids.shape[1]
        if end > table.shape[0]:
            raise ValueError(f"positions: position {end - 1} is outside a table of {table.shape[0]} positions")
        return table[None, begin:end]

    def table_row(self, table: Array, index: int) -> Array:
        rules.row_index("table_row", table.shape[0], index)
        return table[None, index : index + 1]

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Array:
        key = (theta, d, scaling)
        if key not in self._tables:
            self._tables[key] = self._device.to_device(rope_table(theta, d, scaling, self._max_tokens))
        return self._tables[key]

    # --- arithmetic ------------------------------------------------------------------------------------------

    def linear(self, x: Array, w: Array, b: Array | None = None, act: Activation | None = None) -> Array:
        y = self._device.product(self._whole(x).astype(w.dtype, copy=False), w)
        if b is not None or act is not None:
            self._by_row("bias_act", y, y, b, y.shape[-1], _ACTS[act])
        return y

    def add(self, a: Array, b: Array) -> Array:
        return self._combined("add", a, b, 0)

    def mul(self, a: Array, b: Array) -> Array:
        return self._combined("mul", a, b, 1)

    def layer_norm(self, x: Array, w: Array, b: Array | None, eps: float) -> Array:
        x = self._whole(x)
        out = self._like(x)
        self._by_row("layer_norm", out, out, None, x, None, w, b, x.shape[-1], eps)
        return out

    def rms_norm(self, x: Array, w: Array, eps: float) -> Array:
        x = self._whole(x)
        out = self._like(x)
        self._by_row("rms_norm", out, out, None, x, None, w, x.shape[-1], eps)
        return out

    def add_layer_norm(self, x: Array, r: Array, w: Array, b: Array | None, eps: float) -> tuple[Array, Array]:
        rules.same("add_layer_norm", x.shape, r.shape)
        total, out = self._like(x), self._like(x)
        self._by_row("layer_norm", out, out, total, x, r, w, b, x.shape[-1], eps)
        return total, out

    def add_rms_norm(self, x: Array, r: Array, w: Array, eps: float) -> tuple[Array, Array]:
        rules.same("add_rms_norm", x.shape, r.shape)
        total, out = self._like(x), self._like(x)
        self._by_row("rms_norm", out, out, total, x, r, w, x.shape[-1], eps)
        return total, out

    def gelu(self, x: Array, kind: GeluKind) -> Array:
        return self._activated(x, _GELUS[kind])

    def silu(self, x: Array) -> Array:
        return self._activated(x, _ACTS["silu"])

    def tanh(self, x: Array) -> Array:
        return self._activated(x, _ACTS["tanh"])

    def relu(self, x: Array) -> Array:
        return self._activated(x, _ACTS["relu"])

    def geglu(self, x: Array, kind: GeluKind) -> Array:
        x = self._whole(x)
        half = rules.half("geglu", x.shape[-1])
        out = self._room((*x.shape[:-1], half), x.dtype)
        self._by_row("gated_halves", out, out, x, half, _GELUS[kind])
        return out

    def swiglu(self, gate: Array, up: Array) -> Array:
        gate, up = self._whole(gate), self._whole(up)
        out = self._like(gate)
        self._by_row("gated_pair", out, out, gate, up, gate.shape[-1], _ACTS["silu"])
        return out

    def split(self, x: Array, sizes: Sequence[int]) -> tuple[Part, ...]:
        rules.pieces("split", x.shape[-1], sizes)
        return tuple(Part(x, sum(sizes[:place]), size) for place, size in enumerate(sizes))

    # --- attention -------------------------------------------------------------------------------------------

    def heads(self, x: Array | Part, n: int) -> Array:
        whole, offset, size = (x.whole, x.offset, x.size) if isinstance(x, Part) else (x, 0, x.shape[-1])
        rows, length, width = whole.shape
        d = rules.per_head("heads", size, n)
        out = self._room((rows, n, length, d), whole.dtype)
        block = _block(n * d)
        self._launch("heads", (rows * length,), block, whole.dtype, out, whole, length, n, d, width, offset)
        return out

    def merge_heads(self, h: Array) -> Array:
        rows, n, length, d = h.shape
        out = self._room((rows, length, n * d), h.dtype)
        self._by_row("merge_heads", out, out, h, length, n, d)
        return out

    def rope(self, h: Array, table: Array, batch: Batch) -> Array:
        length, d = h.shape[2:]
        if batch.start + length > table.shape[1]:
            raise ValueError(f"rope: heads {h.shape} from {batch.start} pass a table of {table.shape[1]} positions")
        out = self._like(h)
        self._by_row("rope", out, out, h, table, length, d, batch.start, table.shape[1])
        return out

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Array:
        rules.attention(q.shape, k.shape, v.shape, window)
        rows, n, length, d = q.shape
        compiled = next((width for width in _HEAD_WIDTHS if d <= width), None)
        if compiled is None:
            raise ValueError(f"attention: heads of {d} features are wider than {_HEAD_WIDTHS[-1]}, the most there is")
        out = self._like(q)
        grid = (-(-length // _TILE_QUERIES), n, rows)
        sizes = (n, k.shape[1], length, k.shape[2], d, batch.start, float(scale), int(causal))
        sight = -1 if window is None else window
        given = (out, q, k, v, batch.counts, *sizes, sight)
        self._launch(f"attention{compiled}", grid, _ATTENTION_BLOCK, q.dtype, *given)
        return out

    def kv_append(self, cache: Cache | None, layer: int, k: Array, v: Array, batch: Batch) -> tuple[Array, Array]:
        if cache is None:
            return k, v
        if batch.start:
            kept = (each[:, :, : batch.start] for each in cache[layer])
            k, v = (self._device.xp.concatenate([old, new], axis=2) for old, new in zip(kept, (k, v), strict=True))
        cache[layer] = (k, v)
        return k, v

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: Array, batch: Batch) -> Array:
        return self._one_row(x, batch, 0)

    def last_row(self, x: Array, batch: Batch) -> Array:
        return self._one_row(x, batch, 1)

    def mean_rows(self, x: Array, batch: Batch) -> Array:
        rows, length, c = x.shape
        out = self._room((rows, 1, c), self._device.xp.float32)
        self._launch("mean_rows", (rows,), _block(c), x.dtype, out, x, batch.counts, length, c)
        return out

    def l2_normalize(self, x: Array) -> Array:
        return self._vectors(self._whole(x), 1)

    def logits(self, x: Array, w: Array, rows: Sequence[int] | None = None) -> Array:
        x, xp = self._whole(x), self._device.xp
        if rows is None:
            return self._device.product(x.astype(w.dtype, copy=False), w).astype(xp.float32)
        for row in rows:
            rules.row_index("logits", w.shape[0], row)
        chosen = self._device.to_device(np.array(rows, dtype=np.int32))
        count, c = x.shape[0] * x.shape[1], x.shape[-1]
        out = self._room((*x.shape[:-1], len(rows)), xp.float32)
        self._launch("chosen_logits", (len(rows), count), _block(c), w.dtype, out, x.astype(w.dtype), w, chosen, c)
        return out

    def argmax(self, logits: Array) -> Array:
        xp = self._device.xp
        # The first of equal ones, in NumPy as in CuPy.
        return xp.where(xp.isnan(logits).any(axis=-1), logits.shape[-1], xp.argmax(logits, axis=-1)).astype(xp.int32)

    def result(self, x: Array) -> Array:
        rules.one_position("result", x.shape)
        return (x if x.dtype == self._device.xp.float32 else self._vectors(x, 0))[:, 0]

    # --- pieces ----------------------------------------------------------------------------------------------

    def _room(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._device.xp.empty(shape, dtype=dtype)

    def _like(self, x: Array) -> Array:
        return self._room(x.shape, x.dtype)

    def _whole(self, x: Array | Part) -> Array:
        if not isinstance(x, Part):
            return x
        return self._device.xp.ascontiguousarray(x.whole[..., x.offset : x.offset + x.size])

    def _launch(self, kernel: str, grid: tuple[int, ...], block: int, dtype: Any, *arguments: Any) -> None:
        suffix = "f16" if dtype == self._device.xp.float16 else "f32"
        self._device.launch(f"{kernel}_{suffix}", grid, block, arguments)

    def _by_row(self, kernel: str, out: Array, *arguments: Any) -> None:
        """A kernel with one block for each row of ``out``."""
        *before, c = out.shape
        rows = 1
        for size in before:
            rows *= size
        self._launch(kernel, (rows,), _block(c), out.dtype, *arguments)

    def _activated(self, x: Array, act: int) -> Array:
        y = self._whole(x).copy()
        self._by_row("bias_act", y, y, None, y.shape[-1], act)
        return y

    def _combined(self, op: str, a: Array, b: Array, product: int) -> Array:
        a, b = self._whole(a), self._whole(b)
        shape: tuple[Any, ...] = rules.broadcast(op, a.shape, b.shape)
        if len(shape) == 4:
            # Heads: the families never stretch them, so a copy will do.
            a, b = (self._device.xp.broadcast_to(x, shape).copy() for x in (a, b))
            joined = (1, shape[0] * shape[1] * shape[2], shape[3])
            return self._combined(op, a.reshape(joined), b.reshape(joined), product).reshape(shape)
        out = self._room(shape, a.dtype)
        strides = [stride for x in (a, b) for stride in _strides(x.shape)]
        self._by_row("combined", out, out, a, b, shape[1], shape[2], *strides, product)
        return out

    def _one_row(self, x: Array, batch: Batch, last: int) -> Array:
        rows, length, c = x.shape
        out = self._room((rows, 1, c), x.dtype)
        self._by_row("one_row", out, out, x, batch.counts, length, c, last)
        return out

    def _vectors(self, x: Array, normalise: int) -> Array:
        out = self._room(x.shape, self._device.xp.float32)
        self._launch("result", (x.shape[0] * x.shape[1],), _block(x.shape[-1]), x.dtype, out, x, x.shape[-1], normalise)
        return out


def _strides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Elements from row to row and from position to position; 0 repeats the only one."""
    rows, length, c = shape
    return (0 if rows == 1 else length * c, 0 if length == 1 else c)


def _block(c: int) -> int:
    """Threads for a row of ``c`` features: whole warps."""
    return min(_LONGEST_BLOCK, -(-c // _WARP) * _WARP)
