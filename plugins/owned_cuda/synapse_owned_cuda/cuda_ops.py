"""The 31 tensor operations over a device: cuBLAS for products, our kernels for the rest.

Handles are C-contiguous arrays in the activation type, or one of ``handles``: parts of a split and heads are places in
the array they were cut from, and a sum is made when somebody needs it. Pooled rows of a float16 lane are float32: they
are the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np

from synapse_host.ops import shape_rules as rules
from synapse_host.ops.rope_table import rope_table
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_owned_cuda.device import Array, Device
from synapse_owned_cuda.handles import Heads, Part, Sum
from synapse_owned_cuda.launch_shapes import MEAN_BLOCK, WARP, heads_block, norm_block, row_block

#: Codes of the activations in ``kernels.cu``.
_ACTS = {None: 0, "gelu": 1, "gelu_tanh": 2, "silu": 3, "tanh": 4, "relu": 5}
_GELUS = {"erf": 1, "tanh": 2}
#: Queries of a block by kind of row, and threads of it, as ``kernels.cu`` lays attention out.
_TILE_QUERIES, _ATTENTION_BLOCK = {"f32": 32, "f16": 64}, 128
#: Widths of a head the attention kernels are compiled for.
_HEAD_WIDTHS = (32, 64, 128)
#: Positions a cache of keys and values grows by.
_CACHE_STEP = 256
#: Keys and values by layer, each [B, room, Nk * D].
Cache: TypeAlias = dict[int, tuple[Array, Array]]


class ShapedWeights(Protocol):
    """Where the arrays of a checkpoint come from."""

    def shaped(self, name: str, shape: Sequence[int]) -> Array:
        """The array ``name`` of exactly ``shape``, in the lane's type; raises ``ValueError`` otherwise."""


class CudaOps(TensorOps):
    """Operations over ``weights`` on ``device``; rope tables reach ``max_tokens`` positions."""

    def __init__(self, weights: ShapedWeights, device: Device, *, max_tokens: int) -> None:
        self._weights = weights
        self._device = device
        self._max_tokens = max_tokens
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
        y = self._product(self._whole(x), w)
        if b is not None or act is not None:
            self._by_row("bias_act", y, y, b, y.shape[-1], _ACTS[act])
        return y

    def add(self, a: Array, b: Array) -> Array | Sum | Heads:
        if isinstance(a, Heads):
            return self._combined_heads("add", a, b, 0)
        a, b = self._whole(a), self._whole(b)
        return Sum(a, b) if a.shape == b.shape else self._combined("add", a, b, 0)

    def mul(self, a: Array, b: Array) -> Array | Heads:
        if isinstance(a, Heads):
            return self._combined_heads("mul", a, b, 1)
        return self._combined("mul", self._whole(a), self._whole(b), 1)

    def layer_norm(self, x: Array, w: Array, b: Array | None, eps: float) -> Array:
        return self._normed("layer_norm", x, w, b, eps=eps)

    def rms_norm(self, x: Array, w: Array, eps: float) -> Array | Heads:
        if isinstance(x, Heads):
            return replace(self._settled(x), norm=(w, eps))
        return self._normed("rms_norm", x, w, eps=eps)

    def add_layer_norm(self, x: Array, r: Array, w: Array, b: Array | None, eps: float) -> tuple[Array, Array]:
        rules.same("add_layer_norm", x.shape, r.shape)
        added = Sum(self._whole(x), self._whole(r))
        normed = self._normed("layer_norm", added, w, b, eps=eps)
        return self._whole(added), normed

    def add_rms_norm(self, x: Array, r: Array, w: Array, eps: float) -> tuple[Array, Array]:
        rules.same("add_rms_norm", x.shape, r.shape)
        added = Sum(self._whole(x), self._whole(r))
        normed = self._normed("rms_norm", added, w, eps=eps)
        return self._whole(added), normed

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

    def heads(self, x: Array | Part, n: int) -> Heads:
        if not isinstance(x, Part):
            x = Part(self._whole(x), 0, x.shape[-1])
        return Heads(x.whole, x.offset, n, rules.per_head("heads", x.size, n), x.whole.shape[1])

    def merge_heads(self, h: Heads) -> Array:
        return self._contiguous(h).whole

    def rope(self, h: Heads, table: Array, batch: Batch) -> Heads:
        if batch.start + h.length > table.shape[1]:
            raise ValueError(f"rope: heads {h.shape} from {batch.start} pass a table of {table.shape[1]} positions")
        return self._rotated(h, table, batch.start)

    def attention(
        self,
        q: Heads,
        k: Heads,
        v: Heads,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Heads:
        rules.attention(q.shape, k.shape, v.shape, window)
        q = self._settled(q) if q.whole.shape[1] == q.length else self._contiguous(q)
        k, v = self._settled(k), self._settled(v)
        compiled = next((width for width in _HEAD_WIDTHS if q.d <= width), None)
        if compiled is None:
            raise ValueError(f"attention: heads of {q.d} features are wider than {_HEAD_WIDTHS[-1]}, the most there is")
        rows, n, length, d = q.shape
        out = self._room((rows, length, n * d), q.whole.dtype)
        grid = (-(-length // _TILE_QUERIES[self._suffix(out.dtype)]), n, rows)
        places = (q.width, q.offset, k.width, k.offset, v.width, v.offset)
        sight = (batch.start, float(scale), int(causal), -1 if window is None else window)
        given = (batch.counts, n, k.n, length, k.whole.shape[1], d, *places, *sight)
        arrays = (out, q.whole, k.whole, v.whole)
        self._launch(f"attention{compiled}", grid, _ATTENTION_BLOCK, out.dtype, *arrays, *given)
        return Heads(out, 0, n, d, length)

    def kv_append(self, cache: Cache | None, layer: int, k: Heads, v: Heads, batch: Batch) -> tuple[Heads, Heads]:
        if cache is None:
            return k, v
        k, v = self._contiguous(k), self._contiguous(v)
        end = batch.start + k.length
        held = cache.get(layer) if batch.start else None
        kept = tuple(
            self._kept(None if held is None else held[place], new.whole, batch.start, end)
            for place, new in enumerate((k, v))
        )
        cache[layer] = (kept[0], kept[1])
        return Heads(kept[0], 0, k.n, k.d, end), Heads(kept[1], 0, v.n, v.d, end)

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: Array, batch: Batch) -> Array:
        return self._one_row(x, batch, 0)

    def last_row(self, x: Array, batch: Batch) -> Array:
        return self._one_row(x, batch, 1)

    def mean_rows(self, x: Array, batch: Batch) -> Array:
        x = self._whole(x)
        rows, length, c = x.shape
        out = self._room((rows, 1, c), self._device.xp.float32)
        self._launch("mean_rows", (rows, -(-c // WARP)), MEAN_BLOCK, x.dtype, out, x, batch.counts, length, c)
        return out

    def l2_normalize(self, x: Array) -> Array:
        return self._vectors(self._whole(x), 1)

    def logits(self, x: Array, w: Array, rows: Sequence[int] | None = None) -> Array:
        x, xp = self._whole(x), self._device.xp
        if rows is None:
            return self._product(x, w).astype(xp.float32)
        for row in rows:
            rules.row_index("logits", w.shape[0], row)
        chosen = self._device.to_device(np.array(rows, dtype=np.int32))
        count, c = x.shape[0] * x.shape[1], x.shape[-1]
        out = self._room((*x.shape[:-1], len(rows)), xp.float32)
        self._launch("chosen_logits", (len(rows), count), row_block(c), w.dtype, out, x.astype(w.dtype), w, chosen, c)
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

    def settled(self, x: Array | Part | Sum) -> Array:
        """``x`` as an array of its own."""
        return self._whole(x)

    def _whole(self, x: Array | Part | Sum) -> Array:
        if isinstance(x, Sum):
            return x.made(self._combined("add", x.a, x.b, 0)) if x.total is None else x.total
        if not isinstance(x, Part):
            return x
        return self._device.xp.ascontiguousarray(x.whole[..., x.offset : x.offset + x.size])

    def _product(self, x: Array, w: Array) -> Array:
        """One product of all positions: rows of a batch apart would be as many small ones."""
        flat = x.astype(w.dtype, copy=False).reshape(-1, x.shape[-1])
        return self._device.product(flat, w).reshape(*x.shape[:-1], w.shape[0])

    def _normed(self, kernel: str, x: Array, w: Array, *bias: Array | None, eps: float) -> Array:
        """The norm of ``x``; a sum is made on the way."""
        c = x.shape[-1]
        if isinstance(x, Sum) and x.total is None:
            total, out = self._like(x.a), self._like(x.a)
            self._by_row(kernel, out, out, total, x.a, x.b, w, *bias, c, eps, block=norm_block(c))
            x.made(total)
            return out
        x = self._whole(x)
        out = self._like(x)
        self._by_row(kernel, out, out, None, x, None, w, *bias, c, eps, block=norm_block(c))
        return out

    def _rotated(self, h: Heads, table: Array | None, start: int) -> Heads:
        """Heads of their own: what norm they waited for computed, and turned where a table says how."""
        if h.d > _HEAD_WIDTHS[-1]:
            raise ValueError(f"heads of {h.d} features are wider than {_HEAD_WIDTHS[-1]}, the most there is")
        rows, whole = h.whole.shape[0], h.whole
        if whole.shape[1] != h.length:
            whole = self._device.xp.ascontiguousarray(whole[:, : h.length])
        out = self._room((rows, h.length, h.n * h.d), h.whole.dtype)
        w, eps = h.norm or (None, 0.0)
        reach = 0 if table is None else table.shape[1]
        sizes = (h.length, h.n, h.d, h.width, h.offset, start, reach, float(eps))
        self._launch("rotated", (rows * h.length,), heads_block(h.n), out.dtype, out, whole, w, table, *sizes)
        return Heads(out, 0, h.n, h.d, h.length)

    def _settled(self, h: Heads) -> Heads:
        """Heads whose norm is computed."""
        return h if h.norm is None else self._rotated(h, None, 0)

    def _contiguous(self, h: Heads) -> Heads:
        """Heads alone in their array."""
        h = self._settled(h)
        if h.is_plain:
            return h
        size = h.n * h.d
        alone = self._device.xp.ascontiguousarray(h.whole[:, : h.length, h.offset : h.offset + size])
        return Heads(alone, 0, h.n, h.d, h.length)

    def _kept(self, held: Array | None, new: Array, start: int, end: int) -> Array:
        """``held`` with ``new`` written from position ``start`` on; a larger array of both where it has no room."""
        rows, _, width = new.shape
        if held is None or held.shape[1] < end:
            grown = self._room((rows, -(-end // _CACHE_STEP) * _CACHE_STEP, width), new.dtype)
            if held is not None:
                grown[:, :start] = held[:, :start]
            held = grown
        held[:, start:end] = new
        return held

    def _launch(self, kernel: str, grid: tuple[int, ...], block: int, dtype: Any, *arguments: Any) -> None:
        self._device.launch(f"{kernel}_{self._suffix(dtype)}", grid, block, arguments)

    def _suffix(self, dtype: Any) -> str:
        return "f16" if dtype == self._device.xp.float16 else "f32"

    def _by_row(self, kernel: str, out: Array, *arguments: Any, block: int | None = None) -> None:
        """A kernel with one block for each row of ``out``."""
        *before, c = out.shape
        self._launch(kernel, (prod(before),), block or row_block(c), out.dtype, *arguments)

    def _activated(self, x: Array, act: int) -> Array:
        y = self._whole(x).copy()
        self._by_row("bias_act", y, y, None, y.shape[-1], act)
        return y

    def _combined(self, op: str, a: Array, b: Array, product: int) -> Array:
        shape: tuple[Any, ...] = rules.broadcast(op, a.shape, b.shape)
        out = self._room(shape, a.dtype)
        strides = [stride for x in (a, b) for stride in _strides(x.shape)]
        self._by_row("combined", out, out, a, b, shape[1], shape[2], *strides, product)
        return out

    def _combined_heads(self, op: str, a: Heads, b: Heads, product: int) -> Heads:
        """Heads stretch over rows and positions alone, as rows do."""
        rules.broadcast(op, a.shape, b.shape)
        made = self._combined(op, self._contiguous(a).whole, self._contiguous(b).whole, product)
        return Heads(made, 0, a.n, a.d, made.shape[1])

    def _one_row(self, x: Array, batch: Batch, last: int) -> Array:
        x = self._whole(x)
        rows, length, c = x.shape
        out = self._room((rows, 1, c), x.dtype)
        self._by_row("one_row", out, out, x, batch.counts, length, c, last)
        return out

    def _vectors(self, x: Array, normalise: int) -> Array:
        out = self._room(x.shape, self._device.xp.float32)
        self._launch(
            "result", (x.shape[0] * x.shape[1],), row_block(x.shape[-1]), x.dtype, out, x, x.shape[-1], normalise
        )
        return out


def _strides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Elements from row to row and from position to position; 0 repeats the only one."""
    rows, length, c = shape
    return (0 if rows == 1 else length * c, 0 if length == 1 else c)
