"""The tensor operations as a recording: every call adds nodes to an OpenVINO graph and returns one output of it.

Rows and positions are dynamic; features, heads and weights are static. A weight is a constant over the mapped
checkpoint in its own dtype, converted in the graph, so a half-precision checkpoint is not doubled in memory. Which
type the graph computes in is the compiler's setting, not ours. One cast is ours: in a bfloat16 lane a product with
weights stored in bfloat16 says so, or the compiler would keep a copy of them in float32 too, twice their memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from synapse_host.hookspecs import DType
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_host.owned_engine.shape_policy import Regime
from synapse_host.owned_engine.weights import CheckpointWeights, StoredTensor
from synapse_owned_cpu import attention_graph, nodes
from synapse_owned_cpu.nodes import out
from synapse_owned_cpu.runtime import opset, ov

#: One output of a node.
Out: TypeAlias = Any

#: Keeps the division of l2_normalize finite for a zero row; far below the square of any norm a model produces.
_TINY_NORM = 1e-30


class RecordedCache(dict[int, tuple[Out, Out]]):
    """Keys and values by layer: parameters of a recording, replaced by what ``kv_append`` makes of them."""


class StatefulCache:
    """Keys and values of one row as variables of the graph: each run appends to what the request already holds."""

    def __init__(self) -> None:
        #: The nodes that write the variables; a model takes them beside its results.
        self.sinks: list[Any] = []

    def append(self, name: str, x: Out) -> Out:
        """All of the variable ``name`` with ``x`` [1, N, S, D] after it; nothing precedes the first run's."""
        shape = [1, nodes.static(x, 1), 0, nodes.static(x, 3)]
        nothing = opset.constant(np.zeros(shape, dtype=np.float32))
        held = opset.read_value(nothing, name, ov.Type.f32, [1, shape[1], -1, shape[3]])
        joined = opset.concat([held, x], 2)
        self.sinks.append(opset.assign(joined, name))
        return out(joined)


class OpenVinoOps(TensorOps):
    """Records over ``weights``; rope tables reach ``max_tokens`` positions; ``regime`` picks the form of windows.

    ``dtype`` is the type the graph will be compiled for.

    One instance records one graph. The arrays behind its constants are kept in ``held``: they must outlive the
    compiled graph.
    """

    def __init__(
        self, weights: CheckpointWeights, *, max_tokens: int, regime: Regime = "full", dtype: DType = "f32"
    ) -> None:
        self._source = weights
        self._dtype = dtype
        self._max_tokens = max_tokens
        self._regime = regime
        self._constants: dict[str, Out] = {}
        self._masks: dict[object, Out] = {}
        self._tables: dict[tuple[float, int, float | None], Out] = {}
        self.held: list[Any] = []

    # --- sources ---------------------------------------------------------------------------------------------

    def weight(self, name: str, shape: Sequence[int]) -> Out:
        entry = self._source.shaped_entry(name, shape)
        if name not in self._constants:
            self._constants[name] = self._constant(entry)
        return self._constants[name]

    def embedding(self, ids: Out, table: Out) -> Out:
        return nodes.floats(out(opset.gather(table, ids, nodes.integer(0))))

    def positions(self, batch: Batch, table: Out, first: int = 0) -> Out:
        begin = first + batch.start if isinstance(batch.start, int) else nodes.plus(batch.start, first)
        rows = nodes.cut(out(table), begin, nodes.plus(nodes.length(batch.ids, 1), begin))
        return out(nodes.spread(nodes.floats(rows), 0))

    def table_row(self, table: Out, index: int) -> Out:
        row = opset.gather(table, nodes.integers(index), nodes.integer(0))
        return out(nodes.spread(nodes.floats(out(row)), 0))

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Out:
        key = (theta, d, scaling)
        if key not in self._tables:
            self._tables[key] = out(opset.constant(attention_graph.rope_angles(*key, self._max_tokens)))
        return self._tables[key]

    # --- arithmetic ------------------------------------------------------------------------------------------

    def linear(self, x: Out, w: Out, b: Out | None = None, act: Activation | None = None) -> Out:
        y = self._product(x, w)
        if b is not None:
            y = out(opset.add(y, nodes.floats(b)))
        return self._activate(y, act)

    def add(self, a: Out, b: Out) -> Out:
        return out(opset.add(a, b))

    def mul(self, a: Out, b: Out) -> Out:
        return out(opset.multiply(a, b))

    def layer_norm(self, x: Out, w: Out, b: Out | None, eps: float) -> Out:
        y = opset.mvn(x, nodes.integers(-1), True, eps, "inside_sqrt")
        y = opset.multiply(y, nodes.floats(w))
        return out(y if b is None else opset.add(y, nodes.floats(b)))

    def rms_norm(self, x: Out, w: Out, eps: float) -> Out:
        square = opset.reduce_mean(opset.power(x, nodes.real(2.0)), nodes.integers(-1), True)
        root = opset.sqrt(opset.add(square, nodes.real(eps)))
        return out(opset.multiply(opset.multiply(x, opset.divide(nodes.real(1.0), root)), nodes.floats(w)))

    def add_layer_norm(self, x: Out, r: Out, w: Out, b: Out | None, eps: float) -> tuple[Out, Out]:
        total = self.add(x, r)
        return total, self.layer_norm(total, w, b, eps)

    def add_rms_norm(self, x: Out, r: Out, w: Out, eps: float) -> tuple[Out, Out]:
        total = self.add(x, r)
        return total, self.rms_norm(total, w, eps)

    def gelu(self, x: Out, kind: GeluKind) -> Out:
        return out(opset.gelu(x, kind))

    def silu(self, x: Out) -> Out:
        return out(opset.swish(x))

    def tanh(self, x: Out) -> Out:
        return out(opset.tanh(x))

    def relu(self, x: Out) -> Out:
        return out(opset.relu(x))

    def geglu(self, x: Out, kind: GeluKind) -> Out:
        gate, up = opset.split(x, nodes.integer(-1), 2).outputs()
        return self.mul(self.gelu(gate, kind), up)

    def swiglu(self, gate: Out, up: Out) -> Out:
        return self.mul(self.silu(gate), up)

    def split(self, x: Out, sizes: Sequence[int]) -> tuple[Out, ...]:
        return tuple(opset.variadic_split(x, nodes.integer(-1), nodes.integers(*sizes)).outputs())

    # --- attention -------------------------------------------------------------------------------------------

    def heads(self, x: Out, n: int) -> Out:
        size = nodes.features(x) // n
        parted = opset.reshape(x, nodes.integers(0, 0, n, size), True)
        return out(opset.transpose(parted, nodes.integers(0, 2, 1, 3)))

    def merge_heads(self, h: Out) -> Out:
        n, size = nodes.static(h, 1), nodes.static(h, 3)
        return out(opset.reshape(opset.transpose(h, nodes.integers(0, 2, 1, 3)), nodes.integers(0, 0, n * size), True))

    def rope(self, h: Out, table: Out, batch: Batch) -> Out:
        end = nodes.plus(nodes.length(batch.ids, 1), batch.start)
        cos, sin = opset.split(nodes.cut(table, batch.start, end, axis=1), nodes.integer(0), 2).outputs()
        return attention_graph.rotate(h, cos, sin)

    def attention(
        self,
        q: Out,
        k: Out,
        v: Out,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Out:
        k, v = (attention_graph.shared_heads(each, nodes.static(q, 1)) for each in (k, v))
        sight = attention_graph.Sight(batch, causal, window)
        if window is not None and self._regime == "band" and batch.start == 0:
            return attention_graph.banded(q, k, v, sight, scale, self._masks)
        return attention_graph.full(q, k, v, sight, scale, self._masks)

    def kv_append(
        self, cache: RecordedCache | StatefulCache | None, layer: int, k: Out, v: Out, batch: Batch
    ) -> tuple[Out, Out]:
        if cache is None:
            return k, v
        if isinstance(cache, StatefulCache):
            return cache.append(f"keys.{layer}", k), cache.append(f"values.{layer}", v)
        if batch.start and layer in cache:
            kept = (nodes.cut(each, 0, nodes.integers(batch.start), axis=2) for each in cache[layer])
            k, v = (out(opset.concat([old, new], 2)) for old, new in zip(kept, (k, v), strict=True))
        cache[layer] = (k, v)
        return k, v

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: Out, batch: Batch) -> Out:
        return out(opset.gather(x, nodes.integers(0), nodes.integer(1)))

    def last_row(self, x: Out, batch: Batch) -> Out:
        index = nodes.spread(opset.subtract(batch.counts, nodes.integer(1)), 1)
        return out(opset.gather(x, index, nodes.integer(1), 1))

    def mean_rows(self, x: Out, batch: Batch) -> Out:
        counts = nodes.spread(batch.counts, 1, 2)
        places = nodes.spread(nodes.count_up(nodes.length(batch.ids, 1)), 0, 2)
        valid = opset.convert(opset.less(places, counts), "f32")
        total = opset.reduce_sum(opset.multiply(x, valid), nodes.integers(1), True)
        return out(opset.divide(total, opset.convert(counts, "f32")))

    def l2_normalize(self, x: Out) -> Out:
        square = opset.reduce_sum(opset.multiply(x, x), nodes.integers(-1), True)
        return out(opset.divide(x, opset.sqrt(opset.maximum(square, nodes.real(_TINY_NORM)))))

    def logits(self, x: Out, w: Out, rows: Sequence[int] | None = None) -> Out:
        chosen = w if rows is None else out(opset.gather(w, nodes.integers(*rows), nodes.integer(0)))
        return out(opset.matmul(x, nodes.floats(chosen), False, True))

    def argmax(self, logits: Out) -> Out:
        best = opset.equal(logits, opset.reduce_max(logits, nodes.integers(-1), True))
        size = nodes.features(logits)
        index = opset.select(best, opset.constant(np.arange(size, dtype=np.int32)), nodes.integer(size))
        return out(opset.reduce_min(index, nodes.integers(-1), False))

    def result(self, x: Out) -> Out:
        return out(opset.squeeze(x, nodes.integers(1)))

    # --- pieces ----------------------------------------------------------------------------------------------

    def _product(self, x: Out, w: Out) -> Out:
        if self._dtype != "bf16" or w.get_element_type() != ov.Type.bf16:
            return out(opset.matmul(x, nodes.floats(w), False, True))
        return nodes.floats(out(opset.matmul(opset.convert(x, "bf16"), w, False, True)))

    def _constant(self, entry: StoredTensor) -> Out:
        raw = entry.raw()
        self.held.append(raw)
        if entry.dtype == "BF16":
            tensor = ov.Tensor(raw, list(entry.shape), ov.Type.bf16)
        else:
            tensor = ov.Tensor(raw, shared_memory=True)
        return out(ov.op.Constant(tensor, shared_memory=True))

    def _activate(self, y: Out, act: Activation | None) -> Out:
        if act is None:
            return y
        if act in ("gelu", "gelu_tanh"):
            return self.gelu(y, "erf" if act == "gelu" else "tanh")
        return {"silu": self.silu, "tanh": self.tanh, "relu": self.relu}[act](y)
