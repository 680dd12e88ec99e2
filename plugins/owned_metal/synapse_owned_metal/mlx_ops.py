"""The 31 tensor operations on MLX arrays.

Handles are arrays in the activation type, laid out as ``tensor_ops`` writes their shapes. Statistics, softmax and
activation functions are computed in float32. Pooled rows of a float16 lane stay in float32: they are the last step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from synapse_host.hookspecs import DType
from synapse_host.ops import shape_rules as rules
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_host.owned_engine.shape_policy import Regime
from synapse_owned_metal import attention as attending
from synapse_owned_metal.key_value_cache import KeyValueCache
from synapse_owned_metal.runtime import mx
from synapse_owned_metal.score_bound import bounded, longest

Array: TypeAlias = Any

#: The constants of the tanh form (Hendrycks and Gimpel, "Gaussian error linear units", 2016).
_TANH_SCALE = math.sqrt(2.0 / math.pi)
_TANH_CUBIC = 0.044715
#: Rows of a product from which the CPU's reference BLAS gains more by reading weights in their order than a copy costs:
#: it is twice as fast then.
_ROWS_WORTH_A_COPY = 16


class ShapedWeights(Protocol):
    """Where the arrays of a checkpoint come from."""

    def shaped(self, name: str, shape: Sequence[int]) -> Array:
        """The array ``name`` of exactly ``shape``; raises ``ValueError`` otherwise."""


class RopeTables:
    """The angles of a lane by base, width and scaling; every recording shares them."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._made: dict[tuple[float, int, float | None], Array] = {}

    def get(self, theta: float, d: int, scaling: float | None) -> Array:
        """Cosine and sine, float32 [2, max_tokens, d / 2]."""
        key = (theta, d, scaling)
        if key not in self._made:
            self._made[key] = mx.array(attending.rope_angles(theta, d, scaling, self._max_tokens))
        return self._made[key]


class MlxOps(TensorOps):
    """Operations of one run or one recording: the masks it makes are shared by its layers and by nothing else."""

    def __init__(self, weights: ShapedWeights, tables: RopeTables, *, dtype: DType, regime: Regime = "full") -> None:
        self._weights = weights
        self._tables = tables
        self._dtype: DType = dtype
        self._regime = regime
        self._on_cpu = mx.default_device() == mx.Device(mx.cpu)
        self._masks = attending.Masks()
        self._appended: tuple[Array, Array] | None = None

    def weight(self, name: str, shape: Sequence[int]) -> Array:
        return self._weights.shaped(name, shape)

    def embedding(self, ids: Array, table: Array) -> Array:
        return mx.take(table, ids, axis=0)

    def positions(self, batch: Batch, table: Array, first: int = 0) -> Array:
        begin = first + batch.start
        end = begin + batch.ids.shape[1]
        if end > table.shape[0]:
            raise ValueError(f"positions: position {end - 1} is outside a table of {table.shape[0]} positions")
        return table[None, begin:end]

    def table_row(self, table: Array, index: int) -> Array:
        rules.row_index("table_row", table.shape[0], index)
        return table[None, None, index]

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Array:
        return self._tables.get(theta, d, scaling)

    # --- arithmetic ------------------------------------------------------------------------------------------

    def linear(self, x: Array, w: Array, b: Array | None = None, act: Activation | None = None) -> Array:
        columns = mx.contiguous(w.T) if self._on_cpu and x.shape[-2] >= _ROWS_WORTH_A_COPY else w.T
        y = mx.matmul(x, columns) if b is None else mx.addmm(b, x, columns)
        return self._activate(y, act)

    def add(self, a: Array, b: Array) -> Array:
        rules.broadcast("add", a.shape, b.shape)
        return a + b

    def mul(self, a: Array, b: Array) -> Array:
        rules.broadcast("mul", a.shape, b.shape)
        return a * b

    def layer_norm(self, x: Array, w: Array, b: Array | None, eps: float) -> Array:
        return mx.fast.layer_norm(x, w, b, eps)

    def rms_norm(self, x: Array, w: Array, eps: float) -> Array:
        return mx.fast.rms_norm(x, w, eps)

    def add_layer_norm(self, x: Array, r: Array, w: Array, b: Array | None, eps: float) -> tuple[Array, Array]:
        total = x + r
        return total, self.layer_norm(total, w, b, eps)

    def add_rms_norm(self, x: Array, r: Array, w: Array, eps: float) -> tuple[Array, Array]:
        total = x + r
        return total, self.rms_norm(total, w, eps)

    def gelu(self, x: Array, kind: GeluKind) -> Array:
        return _gelu(x.astype(mx.float32), kind).astype(x.dtype)

    def silu(self, x: Array) -> Array:
        wide = x.astype(mx.float32)
        return (wide * mx.sigmoid(wide)).astype(x.dtype)

    def tanh(self, x: Array) -> Array:
        return mx.tanh(x.astype(mx.float32)).astype(x.dtype)

    def relu(self, x: Array) -> Array:
        return mx.maximum(x, 0.0)

    def geglu(self, x: Array, kind: GeluKind) -> Array:
        gate, up = mx.split(x, 2, axis=-1)
        return (_gelu(gate.astype(mx.float32), kind) * up).astype(x.dtype)

    def swiglu(self, gate: Array, up: Array) -> Array:
        wide = gate.astype(mx.float32)
        return (wide * mx.sigmoid(wide) * up).astype(gate.dtype)

    def split(self, x: Array, sizes: Sequence[int]) -> tuple[Array, ...]:
        rules.pieces("split", x.shape[-1], sizes)
        edges = [sum(sizes[:place]) for place in range(1, len(sizes))]
        return tuple(mx.split(x, edges, axis=-1))

    # --- attention -------------------------------------------------------------------------------------------

    def heads(self, x: Array, n: int) -> Array:
        size = rules.per_head("heads", x.shape[-1], n)
        return x.reshape(*x.shape[:2], n, size).transpose(0, 2, 1, 3)

    def merge_heads(self, h: Array) -> Array:
        rows, n, length, size = h.shape
        return h.transpose(0, 2, 1, 3).reshape(rows, length, n * size)

    def rope(self, h: Array, table: Array, batch: Batch) -> Array:
        end = batch.start + h.shape[2]
        if end > table.shape[1]:
            raise ValueError(f"rope: position {end - 1} is outside a table of {table.shape[1]} positions")
        return attending.rotate(h, table, batch.start)

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
        sight = attending.Sight(batch.counts, batch.start, causal, window)
        banded = window is not None and self._regime == "band" and batch.start == 0 and q.shape[1] == k.shape[1]
        context = (attending.banded if banded else attending.tiled)(q, k, v, sight, scale, self._masks)
        return bounded(context, longest(q), self._longest_key(k), scale, self._dtype)

    def kv_append(
        self, cache: KeyValueCache | None, layer: int, k: Array, v: Array, batch: Batch
    ) -> tuple[Array, Array]:
        if cache is None:
            return k, v
        keys, values = cache.append(layer, k, v, batch.start)
        self._appended = keys, cache.longest_key(layer)
        return keys, values

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: Array, batch: Batch) -> Array:
        return x[:, :1]

    def last_row(self, x: Array, batch: Batch) -> Array:
        return x[mx.arange(x.shape[0]), batch.counts - 1][:, None]

    def mean_rows(self, x: Array, batch: Batch) -> Array:
        valid = (mx.arange(x.shape[1]) < batch.counts[:, None])[..., None]
        total = mx.where(valid, x.astype(mx.float32), 0.0).sum(axis=1, keepdims=True)
        return total / batch.counts[:, None, None].astype(mx.float32)

    def l2_normalize(self, x: Array) -> Array:
        wide = x.astype(mx.float32)
        norm = mx.sqrt((wide * wide).sum(axis=-1, keepdims=True))
        return wide / mx.where(norm > 0.0, norm, 1.0)

    def logits(self, x: Array, w: Array, rows: Sequence[int] | None = None) -> Array:
        if rows is None:
            # The whole vocabulary in float32 would be a second copy of the largest tensor, made for every token.
            wide = mx.matmul(x, w.T).astype(mx.float32)
            # Past what half precision holds, the first of some infinities would be taken for the likeliest token.
            return mx.where(mx.isinf(wide), mx.nan, wide) if x.dtype == mx.float16 else wide
        chosen = w[mx.array(list(rows))].astype(mx.float32)
        return mx.matmul(x.astype(mx.float32), chosen.T)

    def argmax(self, logits: Array) -> Array:
        size = logits.shape[-1]
        best = logits == logits.max(axis=-1, keepdims=True)
        index = mx.where(best, mx.arange(size), size).min(axis=-1)
        return mx.where(mx.isnan(logits).any(axis=-1), size, index).astype(mx.int32)

    def result(self, x: Array) -> Array:
        rules.one_position("result", x.shape)
        return x[:, 0].astype(mx.float32)

    # --- pieces ----------------------------------------------------------------------------------------------

    def _longest_key(self, k: Array) -> Array:
        """Of cached keys the cache knows: reading all of them again for every token would cost more than attention."""
        if self._appended is not None and self._appended[0] is k:
            return self._appended[1]
        return longest(k)

    def _activate(self, y: Array, act: Activation | None) -> Array:
        if act is None:
            return y
        if act in ("gelu", "gelu_tanh"):
            return self.gelu(y, "erf" if act == "gelu" else "tanh")
        return {"silu": self.silu, "tanh": self.tanh, "relu": self.relu}[act](y)


def _gelu(x: Array, kind: GeluKind) -> Array:
    """Of float32, exact or by the tanh form."""
    if kind == "erf":
        return 0.5 * x * (1.0 + mx.erf(x * math.sqrt(0.5)))
    return 0.5 * x * (1.0 + mx.tanh(_TANH_SCALE * (x + _TANH_CUBIC * x * x * x)))
