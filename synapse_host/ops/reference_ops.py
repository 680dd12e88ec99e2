"""The definition of every tensor operation: numpy, float32 values, reductions and transcendentals in float64.

Handles are float32 arrays laid out as ``tensor_ops`` writes their shapes; ids and counts are int32 arrays. Each row
of a batch is multiplied on its own, so the bits of a row depend on its padded length and never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from synapse_host.ops import reference_activations as activations
from synapse_host.ops import shape_rules as rules
from synapse_host.ops.reference_attention import ReferenceCache, Visibility, attend, rotate
from synapse_host.ops.rope_table import rope_table
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_host.ops.weight_source import WeightSource, checked_tensor

Array: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int32]

#: Rows of a weight turned to float64 at a time; bounds the copy of a large vocabulary.
_WEIGHT_ROWS = 8192


def _f32(x: Float64) -> Array:
    return x.astype(np.float32)


def _f64(x: Array) -> Float64:
    return x.astype(np.float64)


def _product(x: Array, w: Array) -> Float64:
    """``x · wᵀ`` in float64, one matrix product per row of the batch."""
    wide = _f64(x)
    cuts = range(0, w.shape[0], _WEIGHT_ROWS)
    parts = [wide @ _f64(w[cut : cut + _WEIGHT_ROWS]).T for cut in cuts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)


class ReferenceOps(TensorOps):
    """Eager numpy operations over ``weights``; rope tables reach ``max_tokens`` positions.

    Every method raises ``ValueError`` naming the operation and the shapes when they break a rule of the operation.
    """

    def __init__(self, weights: WeightSource, *, max_tokens: int) -> None:
        self._source = weights
        self._max_tokens = max_tokens
        self._weights: dict[str, Array] = {}
        self._tables: dict[tuple[float, int, float | None], Array] = {}

    def weight(self, name: str, shape: Sequence[int]) -> Array:
        held = self._weights.get(name)
        if held is None or held.shape != tuple(shape):
            held = self._weights[name] = checked_tensor(self._source, name, shape)
        return held

    def embedding(self, ids: Ids, table: Array) -> Array:
        outside = ids[(ids < 0) | (ids >= table.shape[0])]
        if outside.size:
            raise ValueError(f"embedding: token id {outside[0]} is outside a vocabulary of {table.shape[0]}")
        return table[ids]

    def positions(self, batch: Batch, table: Array, first: int = 0) -> Array:
        begin = first + batch.start
        end = begin + batch.ids.shape[1]
        if end > table.shape[0]:
            raise ValueError(f"positions: position {end - 1} is outside a table of {table.shape[0]} positions")
        return table[None, begin:end]

    def table_row(self, table: Array, index: int) -> Array:
        rules.row_index("table_row", table.shape[0], index)
        return table[None, None, index]

    def linear(self, x: Array, w: Array, b: Array | None = None, act: Activation | None = None) -> Array:
        rules.features("linear", x.shape, w.shape, axis=1)
        y = _product(x, w)
        if b is not None:
            rules.vector("linear", b.shape, w.shape[0])
            y += b
        return _f32(activations.activate(y, act))

    def add(self, a: Array, b: Array) -> Array:
        rules.broadcast("add", a.shape, b.shape)
        return a + b

    def mul(self, a: Array, b: Array) -> Array:
        rules.broadcast("mul", a.shape, b.shape)
        return a * b

    def layer_norm(self, x: Array, w: Array, b: Array | None, eps: float) -> Array:
        rules.vector("layer_norm", w.shape, x.shape[-1])
        y = _f64(x)
        y -= y.mean(axis=-1, keepdims=True)
        y /= np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + eps)
        y *= w
        if b is not None:
            rules.vector("layer_norm", b.shape, x.shape[-1])
            y += b
        return _f32(y)

    def rms_norm(self, x: Array, w: Array, eps: float) -> Array:
        rules.vector("rms_norm", w.shape, x.shape[-1])
        y = _f64(x)
        return _f32(y / np.sqrt(np.mean(y * y, axis=-1, keepdims=True) + eps) * w)

    def add_layer_norm(self, x: Array, r: Array, w: Array, b: Array | None, eps: float) -> tuple[Array, Array]:
        rules.same("add_layer_norm", x.shape, r.shape)
        total = x + r
        return total, self.layer_norm(total, w, b, eps)

    def add_rms_norm(self, x: Array, r: Array, w: Array, eps: float) -> tuple[Array, Array]:
        rules.same("add_rms_norm", x.shape, r.shape)
        total = x + r
        return total, self.rms_norm(total, w, eps)

    def gelu(self, x: Array, kind: GeluKind) -> Array:
        return _f32(activations.gelu(_f64(x), kind))

    def silu(self, x: Array) -> Array:
        return _f32(activations.silu(_f64(x)))

    def tanh(self, x: Array) -> Array:
        return _f32(np.tanh(_f64(x)))

    def relu(self, x: Array) -> Array:
        return np.maximum(x, np.float32(0.0))

    def geglu(self, x: Array, kind: GeluKind) -> Array:
        cut = rules.half("geglu", x.shape[-1])
        return _f32(activations.gelu(_f64(x[..., :cut]), kind) * x[..., cut:])

    def swiglu(self, gate: Array, up: Array) -> Array:
        rules.same("swiglu", gate.shape, up.shape)
        return _f32(activations.silu(_f64(gate)) * up)

    def split(self, x: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
        rules.pieces("split", x.shape[-1], sizes)
        return tuple(np.split(x, np.cumsum(sizes)[:-1].tolist(), axis=-1))

    def heads(self, x: Array, n: int) -> Array:
        size = rules.per_head("heads", x.shape[-1], n)
        return x.reshape(*x.shape[:2], n, size).transpose(0, 2, 1, 3)

    def merge_heads(self, h: Array) -> Array:
        rules.rank("merge_heads", h.shape, 4)
        rows, n, length, size = h.shape
        return h.transpose(0, 2, 1, 3).reshape(rows, length, n * size)

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Array:
        rules.half("rope_table", d)
        held = self._tables.get((theta, d, scaling))
        if held is None:
            held = self._tables[theta, d, scaling] = rope_table(theta, d, scaling, self._max_tokens)
        return held

    def rope(self, h: Array, table: Array, batch: Batch) -> Array:
        end = batch.start + h.shape[2]
        if end > table.shape[1] or rules.half("rope", h.shape[3]) != table.shape[2]:
            raise ValueError(f"rope: heads {h.shape} up to position {end} do not fit a table of {table.shape}")
        return rotate(h, table, batch.start)

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
        sharing = rules.attention(q.shape, k.shape, v.shape, window)
        out = np.zeros(q.shape, dtype=np.float32)
        for row, count in enumerate(batch.counts.tolist()):
            rule = Visibility(min(batch.start + count, k.shape[2]), causal, window)
            for n in range(q.shape[1]):
                keys, values = k[row, n // sharing], v[row, n // sharing]
                attend(q[row, n], keys, values, batch.start, scale, rule, out[row, n])
        return out

    def kv_append(
        self, cache: ReferenceCache | None, layer: int, k: Array, v: Array, batch: Batch
    ) -> tuple[Array, Array]:
        rules.same("kv_append", k.shape, v.shape)
        return (k, v) if cache is None else cache.append(layer, k, v, batch.start)

    def first_row(self, x: Array, batch: Batch) -> Array:
        return x[:, :1]

    def last_row(self, x: Array, batch: Batch) -> Array:
        index = np.maximum(batch.counts - 1, 0)
        last: Array = x[np.arange(x.shape[0]), index][:, None]
        return last

    def mean_rows(self, x: Array, batch: Batch) -> Array:
        valid = np.arange(x.shape[1])[None, :] < batch.counts[:, None]
        total = np.where(valid[..., None], x, 0.0).sum(axis=1, keepdims=True, dtype=np.float64)
        return _f32(total / np.maximum(batch.counts, 1)[:, None, None])

    def l2_normalize(self, x: Array) -> Array:
        y = _f64(x)
        norm = np.sqrt(np.sum(y * y, axis=-1, keepdims=True))
        return _f32(y / np.where(norm > 0.0, norm, 1.0))

    def logits(self, x: Array, w: Array, rows: Sequence[int] | None = None) -> Array:
        rules.features("logits", x.shape, w.shape, axis=1)
        for row in rows or ():
            rules.row_index("logits", w.shape[0], row)
        return _f32(_product(x, w if rows is None else w[list(rows)]))

    def argmax(self, logits: Array) -> Ids:
        nothing = np.isnan(logits).any(axis=-1)
        best: Ids = np.where(nothing, logits.shape[-1], np.argmax(logits, axis=-1)).astype(np.int32)
        return best

    def result(self, x: Array) -> Array:
        rules.one_position("result", x.shape)
        return np.ascontiguousarray(x[:, 0], dtype=np.float32)
