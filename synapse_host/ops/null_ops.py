"""Operations on shapes alone: they prove that a family keeps the rules without computing anything.

Handles refuse to be looked at. Every operation checks its shapes with B and S as unknown lengths, as a recording
backend sees them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from synapse_host.ops import shape_rules as rules
from synapse_host.ops.null_handle import NullHandle
from synapse_host.ops.shape_rules import Dim, Shape
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_host.ops.weight_source import check_weight_shape


class NullOps(TensorOps):
    """Checks every shape rule and remembers which operations and weights were asked for.

    ``tensors`` maps the checkpoint's names to shapes; without it every weight is taken to be as asked.
    Methods raise ``ValueError`` naming the operation and the shapes when they break a rule.
    """

    def __init__(self, tensors: Mapping[str, Sequence[int]] | None = None) -> None:
        self._tensors = tensors
        self._shapes: dict[int, Shape] = {}
        self._held: list[NullHandle] = []
        #: Names of the operations called, in order.
        self.calls: list[str] = []
        #: Every weight asked for, with its shape.
        self.weights: dict[str, tuple[int, ...]] = {}

    def handle(self, *shape: Dim) -> NullHandle:
        """A new handle of ``shape``; unknown lengths are given by name."""
        made = NullHandle()
        self._held.append(made)
        self._shapes[id(made)] = shape
        return made

    def batch(self, start: int = 0) -> Batch:
        """Ids [B, S] and counts [B] of unknown lengths."""
        return Batch(self.handle("B", "S"), self.handle("B"), start)

    def shape_of(self, handle: NullHandle) -> Shape:
        """The shape behind ``handle``; raises ``ValueError`` for anything these operations did not make."""
        shape = self._shapes.get(id(handle))
        if shape is None:
            raise ValueError(
                f"{type(handle).__name__} is no handle of these operations; pass on what an operation gave"
            )
        return shape

    def _seen(self, op: str, *handles: NullHandle) -> list[Shape]:
        self.calls.append(op)
        return [self.shape_of(handle) for handle in handles]

    def weight(self, name: str, shape: Sequence[int]) -> NullHandle:
        self.calls.append("weight")
        if self._tensors is not None:
            if name not in self._tensors:
                raise ValueError(f"the checkpoint has no tensor {name!r} (shape {tuple(shape)} is needed)")
            check_weight_shape(name, shape, self._tensors[name])
        self.weights[name] = tuple(shape)
        return self.handle(*shape)

    def embedding(self, ids: NullHandle, table: NullHandle) -> NullHandle:
        tokens, rows = self._seen("embedding", ids, table)
        rules.rank("embedding", tokens, 2)
        rules.rank("embedding", rows, 2)
        return self.handle(*tokens, rows[1])

    def positions(self, batch: Batch, table: NullHandle, first: int = 0) -> NullHandle:
        tokens, rows = self._seen("positions", batch.ids, table)
        rules.rank("positions", rows, 2)
        rules.row_index("positions", rows[0], first + batch.start)
        return self.handle(1, tokens[1], rows[1])

    def table_row(self, table: NullHandle, index: int) -> NullHandle:
        (rows,) = self._seen("table_row", table)
        rules.rank("table_row", rows, 2)
        rules.row_index("table_row", rows[0], index)
        return self.handle(1, 1, rows[1])

    def linear(
        self, x: NullHandle, w: NullHandle, b: NullHandle | None = None, act: Activation | None = None
    ) -> NullHandle:
        shape, weight = self._seen("linear", x, w)
        rules.rank("linear", shape, 3)
        rules.features("linear", shape, weight, axis=1)
        if b is not None:
            rules.vector("linear", self.shape_of(b), weight[0])
        return self.handle(*shape[:2], weight[0])

    def add(self, a: NullHandle, b: NullHandle) -> NullHandle:
        return self.handle(*rules.broadcast("add", *self._seen("add", a, b)))

    def mul(self, a: NullHandle, b: NullHandle) -> NullHandle:
        return self.handle(*rules.broadcast("mul", *self._seen("mul", a, b)))

    def layer_norm(self, x: NullHandle, w: NullHandle, b: NullHandle | None, eps: float) -> NullHandle:
        (shape,) = self._seen("layer_norm", x)
        rules.rank("layer_norm", shape, 3)
        return self._normed("layer_norm", shape, w, b)

    def rms_norm(self, x: NullHandle, w: NullHandle, eps: float) -> NullHandle:
        (shape,) = self._seen("rms_norm", x)
        rules.rank("rms_norm", shape, 3, 4)
        return self._normed("rms_norm", shape, w, None)

    def _normed(self, op: str, shape: Shape, w: NullHandle, b: NullHandle | None) -> NullHandle:
        for vector in (w,) if b is None else (w, b):
            rules.vector(op, self.shape_of(vector), shape[-1])
        return self.handle(*shape)

    def add_layer_norm(
        self, x: NullHandle, r: NullHandle, w: NullHandle, b: NullHandle | None, eps: float
    ) -> tuple[NullHandle, NullHandle]:
        shape = rules.rank("add_layer_norm", rules.same("add_layer_norm", *self._seen("add_layer_norm", x, r)), 3)
        return self.handle(*shape), self._normed("add_layer_norm", shape, w, b)

    def add_rms_norm(self, x: NullHandle, r: NullHandle, w: NullHandle, eps: float) -> tuple[NullHandle, NullHandle]:
        shape = rules.rank("add_rms_norm", rules.same("add_rms_norm", *self._seen("add_rms_norm", x, r)), 3)
        return self.handle(*shape), self._normed("add_rms_norm", shape, w, None)

    def _alike(self, op: str, x: NullHandle) -> NullHandle:
        (shape,) = self._seen(op, x)
        return self.handle(*rules.rank(op, shape, 3, 4))

    def gelu(self, x: NullHandle, kind: GeluKind) -> NullHandle:
        return self._alike("gelu", x)

    def silu(self, x: NullHandle) -> NullHandle:
        return self._alike("silu", x)

    def tanh(self, x: NullHandle) -> NullHandle:
        return self._alike("tanh", x)

    def relu(self, x: NullHandle) -> NullHandle:
        return self._alike("relu", x)

    def geglu(self, x: NullHandle, kind: GeluKind) -> NullHandle:
        (shape,) = self._seen("geglu", x)
        rules.rank("geglu", shape, 3)
        return self.handle(*shape[:2], rules.half("geglu", shape[2]))

    def swiglu(self, gate: NullHandle, up: NullHandle) -> NullHandle:
        return self.handle(*rules.rank("swiglu", rules.same("swiglu", *self._seen("swiglu", gate, up)), 3))

    def split(self, x: NullHandle, sizes: Sequence[int]) -> tuple[NullHandle, ...]:
        (shape,) = self._seen("split", x)
        rules.rank("split", shape, 3)
        rules.pieces("split", shape[2], sizes)
        return tuple(self.handle(*shape[:2], size) for size in sizes)

    def heads(self, x: NullHandle, n: int) -> NullHandle:
        (shape,) = self._seen("heads", x)
        rules.rank("heads", shape, 3)
        return self.handle(shape[0], n, shape[1], rules.per_head("heads", shape[2], n))

    def merge_heads(self, h: NullHandle) -> NullHandle:
        (shape,) = self._seen("merge_heads", h)
        rows, n, length, size = rules.rank("merge_heads", shape, 4)
        return self.handle(rows, length, _product(n, size))

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> NullHandle:
        self.calls.append("rope_table")
        return self.handle(2, "P", rules.half("rope_table", d))

    def rope(self, h: NullHandle, table: NullHandle, batch: Batch) -> NullHandle:
        shape, angles = self._seen("rope", h, table)
        rules.rank("rope", shape, 4)
        if rules.rank("rope", angles, 3)[2] != rules.half("rope", shape[3]):
            raise ValueError(f"rope: heads {shape} do not fit a table of {angles}")
        return self.handle(*shape)

    def attention(
        self,
        q: NullHandle,
        k: NullHandle,
        v: NullHandle,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> NullHandle:
        queries, keys, values, _ = self._seen("attention", q, k, v, batch.counts)
        rules.attention(queries, keys, values, window)
        return self.handle(*queries)

    def kv_append(
        self, cache: object | None, layer: int, k: NullHandle, v: NullHandle, batch: Batch
    ) -> tuple[NullHandle, NullHandle]:
        rows, n, length, size = rules.rank("kv_append", rules.same("kv_append", *self._seen("kv_append", k, v)), 4)
        total = length if cache is None else "T"
        return self.handle(rows, n, total, size), self.handle(rows, n, total, size)

    def _pooled(self, op: str, x: NullHandle, batch: Batch) -> NullHandle:
        shape, _ = self._seen(op, x, batch.counts)
        rules.rank(op, shape, 3)
        return self.handle(shape[0], 1, shape[2])

    def first_row(self, x: NullHandle, batch: Batch) -> NullHandle:
        return self._pooled("first_row", x, batch)

    def last_row(self, x: NullHandle, batch: Batch) -> NullHandle:
        return self._pooled("last_row", x, batch)

    def mean_rows(self, x: NullHandle, batch: Batch) -> NullHandle:
        return self._pooled("mean_rows", x, batch)

    def l2_normalize(self, x: NullHandle) -> NullHandle:
        (shape,) = self._seen("l2_normalize", x)
        return self.handle(*rules.rank("l2_normalize", shape, 3))

    def logits(self, x: NullHandle, w: NullHandle, rows: Sequence[int] | None = None) -> NullHandle:
        shape, weight = self._seen("logits", x, w)
        rules.features("logits", rules.rank("logits", shape, 3), weight, axis=1)
        for row in rows or ():
            rules.row_index("logits", weight[0], row)
        return self.handle(*shape[:2], weight[0] if rows is None else len(rows))

    def argmax(self, logits: NullHandle) -> NullHandle:
        (shape,) = self._seen("argmax", logits)
        return self.handle(*rules.rank("argmax", shape, 3)[:2])

    def result(self, x: NullHandle) -> NullHandle:
        (shape,) = self._seen("result", x)
        rules.one_position("result", shape)
        return self.handle(shape[0], shape[2])


def _product(n: Dim, size: Dim) -> int:
    if isinstance(n, int) and isinstance(size, int):
        return n * size
    raise ValueError(f"merge_heads: {n} heads of {size} features are not known numbers")
