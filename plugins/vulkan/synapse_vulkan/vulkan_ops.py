"""The tensor operations as a recording: every call adds steps over values and returns a view.

Rows and heads lie in memory alike, [texts, positions, heads · size], so cutting into heads, joining them, splitting
features and taking the first position move nothing. Everything is computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind, TensorOps
from synapse_vulkan.attention_shape import SOFTWARE_SHAPE, AttentionShape
from synapse_vulkan.product import ACTIVATIONS, Products
from synapse_vulkan.recording import Memory, Outside, Recording, Step, Stored, View, contiguous, group_count, packed

#: Invocations of a workgroup in the kernels that walk along features.
_LANES = 64
_LAYER, _RMS, _EUCLID = 0, 1, 2
#: Operations of one feature of a query and a key.
_ATTENTION_COST = 4.0


class Matrix(Protocol):
    """A weight stored for products."""

    @property
    def stored(self) -> Stored: ...
    @property
    def columns(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def quads(self) -> int: ...


class Table(Protocol):
    """A weight rows are taken of: ``part_rows`` of them in every part, each filled up to ``stride`` numbers."""

    @property
    def parts(self) -> Sequence[Stored]: ...
    @property
    def part_rows(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def stride(self) -> int: ...


class PlainRows(Protocol):
    """A weight stored row by row in float32, rows filled up to a multiple of four."""

    @property
    def stored(self) -> Stored: ...
    @property
    def rows(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def stride(self) -> int: ...


class WeightRef(Protocol):
    """A tensor of the checkpoint that is stored in the form the first use asks for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def matrix(self, rows: Sequence[int] | None = None) -> Matrix: ...
    def table(self) -> Table: ...
    def plain_rows(self) -> PlainRows: ...
    def vector(self) -> Stored: ...


class DeviceWeights(Protocol):
    """Where weights and tables come from."""

    def weight(self, name: str, shape: Sequence[int]) -> WeightRef: ...
    def angles(self, theta: float, d: int, scaling: float | None) -> Stored: ...
    @property
    def max_tokens(self) -> int: ...


#: Keys and values by layer, replaced by what ``kv_append`` makes of them.
RecordedCache: TypeAlias = dict[int, tuple[View, View]]


class VulkanOps(TensorOps):
    """Records one executable over ``weights``, its products by the variants of ``products``."""

    def __init__(
        self,
        weights: DeviceWeights,
        recording: Recording,
        products: Products,
        attention: AttentionShape = SOFTWARE_SHAPE,
    ) -> None:
        self._weights = weights
        self._recording = recording
        self._products = products
        self._attention = attention

    # --- weights and positions -------------------------------------------------------------------------------

    def weight(self, name: str, shape: Sequence[int]) -> WeightRef:
        return self._weights.weight(name, shape)

    def embedding(self, ids: View, table: WeightRef) -> View:
        rows = table.table()
        out = self._recording.rows(ids.texts, ids.positions, rows.width)
        quads = rows.stride // 4
        groups = (group_count(quads, _LANES), ids.rows, 1)
        work = 4.0 * out.rows * rows.width
        for first, part in zip(range(0, rows.rows, rows.part_rows), rows.parts, strict=True):
            push = packed(ids.rows, rows.width, ids.offset, quads, first, rows.part_rows)
            self._add("gather", (), (ids.memory, out.memory), (1,), push, groups, work, (part,))
        return out

    def positions(self, batch: Batch, table: WeightRef, first: int = 0) -> View:
        rows = table.plain_rows()
        begin, length = first + batch.start, batch.ids.positions
        if begin + length > rows.rows:
            raise ValueError(f"positions: position {begin + length - 1} is outside a table of {rows.rows} positions")
        return View(rows.stored, 1, length, rows.width, begin * rows.stride, 0, rows.stride)

    def table_row(self, table: WeightRef, index: int) -> View:
        rows = table.plain_rows()
        return View(rows.stored, 1, 1, rows.width, index * rows.stride, 0, 0)

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> Stored:
        return self._weights.angles(theta, d, scaling)

    # --- arithmetic ------------------------------------------------------------------------------------------

    def linear(self, x: View, w: WeightRef, b: WeightRef | None = None, act: Activation | None = None) -> View:
        return self._product(x, w.matrix(), None if b is None else b.vector(), act)

    def add(self, a: View, b: View) -> View:
        return self._binary(a, b, multiply=False)

    def mul(self, a: View, b: View) -> View:
        return self._binary(a, b, multiply=True)

    def layer_norm(self, x: View, w: WeightRef, b: WeightRef | None, eps: float) -> View:
        return self._norm(_LAYER, x, None, w, b, eps)[1]

    def rms_norm(self, x: View, w: WeightRef, eps: float) -> View:
        return self._norm(_RMS, x, None, w, None, eps)[1]

    def add_layer_norm(self, x: View, r: View, w: WeightRef, b: WeightRef | None, eps: float) -> tuple[View, View]:
        return self._norm(_LAYER, x, r, w, b, eps)

    def add_rms_norm(self, x: View, r: View, w: WeightRef, eps: float) -> tuple[View, View]:
        return self._norm(_RMS, x, r, w, None, eps)

    def gelu(self, x: View, kind: GeluKind) -> View:
        return self._activated(x, None, _gelu(kind))

    def silu(self, x: View) -> View:
        return self._activated(x, None, "silu")

    def tanh(self, x: View) -> View:
        return self._activated(x, None, "tanh")

    def relu(self, x: View) -> View:
        return self._activated(x, None, "relu")

    def geglu(self, x: View, kind: GeluKind) -> View:
        half = x.width // 2
        gate, passed = self.split(x, (half, half))
        return self._activated(gate, passed, _gelu(kind))

    def swiglu(self, gate: View, up: View) -> View:
        return self._activated(gate, up, "silu")

    def split(self, x: View, sizes: Sequence[int]) -> tuple[View, ...]:
        starts = [sum(sizes[:place]) for place in range(len(sizes))]
        return tuple(replace(x, width=size, offset=x.offset + start) for start, size in zip(starts, sizes, strict=True))

    # --- attention -------------------------------------------------------------------------------------------

    def heads(self, x: View, n: int) -> View:
        return replace(x, heads=n)

    def merge_heads(self, h: View) -> View:
        return replace(h, heads=None)

    def rope(self, h: View, table: Stored, batch: Batch) -> View:
        heads, half = h.heads or 1, h.width // (h.heads or 1) // 2
        out = replace(self._recording.rows(h.texts, h.positions, h.width), heads=h.heads)
        places = (h.offset, h.text_stride, h.position_stride, batch.start, self._weights.max_tokens)
        push = packed(h.positions, heads, half, *places)
        groups = (group_count(heads * half, _LANES), h.rows, 1)
        self._add("rope", (), (h.memory, table, out.memory), (2,), push, groups, 6.0 * h.rows * h.width)
        return out

    def attention(
        self,
        q: View,
        k: View,
        v: View,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> View:
        heads, key_heads = q.heads or 1, k.heads or 1
        size = q.width // heads
        out = replace(self._recording.rows(q.texts, q.positions, q.width), heads=q.heads)
        aligned = size % 4 == 0 and k.aligned and v.aligned
        constants = self._attention.constants(size, aligned)
        texels = (k.memory, v.memory) if aligned else ()
        per_group = self._attention.lanes * self._attention.queries_of(size)
        rules = (int(causal), -1 if window is None else window)
        views = [number for view in (q, k, v) for number in (view.offset, view.text_stride, view.position_stride)]
        push = packed(q.positions, k.positions, heads, heads // key_heads, batch.start, *views, *rules, float(scale))
        seen = k.positions if window is None else min(k.positions, 2 * window + per_group)
        bindings = (q.memory, k.memory, v.memory, out.memory, batch.counts.memory)
        groups = (1, group_count(q.positions, per_group), q.texts * heads)
        self._add(
            "attention", constants, bindings, (3,), push, groups, _ATTENTION_COST * q.rows * q.width * seen, texels
        )
        return out

    def kv_append(self, cache: RecordedCache | None, layer: int, k: View, v: View, batch: Batch) -> tuple[View, View]:
        if cache is None:
            return k, v
        if batch.start:
            old_k, old_v = cache[layer]
            k, v = self._joined(old_k, k, batch.start), self._joined(old_v, v, batch.start)
        cache[layer] = (k, v)
        return k, v

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: View, batch: Batch) -> View:
        return replace(x, positions=1, position_stride=0)

    def last_row(self, x: View, batch: Batch) -> View:
        out = self._recording.rows(x.texts, 1, x.width)
        self.copy(x, out, batch.counts.memory)
        return out

    def mean_rows(self, x: View, batch: Batch) -> View:
        out = self._recording.rows(x.texts, 1, x.width)
        push = packed(x.width, x.offset, x.text_stride, x.position_stride)
        groups = (group_count(x.width, _LANES), x.texts, 1)
        self._add("mean", (), (x.memory, out.memory, batch.counts.memory), (1,), push, groups, 1.0 * x.rows * x.width)
        return out

    def l2_normalize(self, x: View) -> View:
        return self._norm(_EUCLID, x, None, None, None, 0.0)[1]

    def logits(self, x: View, w: WeightRef, rows: Sequence[int] | None = None) -> View:
        return self._product(x, w.matrix(rows), None, None)

    def argmax(self, logits: View) -> View:
        flat, stride = self._even(logits)
        out = self._recording.rows(logits.texts, logits.positions, 1)
        push = packed(flat.rows, flat.width, flat.offset, stride)
        groups = (group_count(flat.rows, _LANES), 1, 1)
        work = 2.0 * flat.rows * flat.width
        self._add("argmax", (), (flat.memory, out.memory), (1,), push, groups, work)
        return out

    def result(self, x: View) -> View:
        out = contiguous(Outside("result"), x.texts, 1, x.width)
        self.copy(x, out)
        return out

    def hand_over(self, x: View) -> View:
        """Put hidden rows where the next segment takes them."""
        out = contiguous(Outside("hidden"), x.texts, x.positions, x.width)
        self.copy(x, out)
        return out

    def copy(self, x: View, out: View, last_of: Memory | None = None) -> None:
        """Rows of ``x`` into ``out``; with ``last_of``, the counts, the last valid row of every text."""
        rows = (x.texts, out.positions, x.width)
        places = [n for view in (x, out) for n in (view.offset, view.text_stride, view.position_stride)]
        bindings = (x.memory, out.memory, last_of or x.memory)
        groups = (group_count(x.width, _LANES), x.texts * out.positions, 1)
        work = 1.0 * out.rows * x.width
        self._add("copy", (int(last_of is not None),), bindings, (1,), packed(*rows, *places), groups, work)

    # --- pieces ----------------------------------------------------------------------------------------------

    def _product(self, x: View, w: Matrix, bias: Stored | None, act: Activation | None) -> View:
        x, stride = self._even(x)
        out = self._recording.rows(x.texts, x.positions, w.columns)
        variant = self._products.for_rows(x.rows)
        push = packed(x.rows, w.depth, w.columns, w.quads, x.offset, stride)
        constants = variant.constants(act, bias is not None, x.aligned)
        texels = (w.stored, x.memory) if x.aligned else (w.stored,)
        # What is bound without being read is the input: a weight may be larger than a storage buffer may be.
        bindings = (x.memory, bias or x.memory, out.memory)
        work = 2.0 * x.rows * w.depth * 4 * w.quads
        self._add(variant.kernel, constants, bindings, (2,), push, variant.groups(x.rows, w.quads), work, texels)
        return out

    def _norm(
        self, kind: int, x: View, r: View | None, w: WeightRef | None, b: WeightRef | None, eps: float
    ) -> tuple[View, View]:
        x, stride = self._even(x)
        added, added_stride = (x, 0) if r is None else self._even(r)
        parts = x.heads or 1
        total = x if r is None else self._recording.rows(x.texts, x.positions, x.width)
        out = replace(self._recording.rows(x.texts, x.positions, x.width), heads=x.heads)
        weight = x.memory if w is None else w.vector()
        bias = weight if b is None else b.vector()
        push = packed(x.width // parts, x.offset, stride, added.offset, added_stride, float(eps))
        bindings = (x.memory, added.memory, weight, bias, total.memory, out.memory)
        writes = (5,) if r is None else (4, 5)
        constants = (kind, int(r is not None), int(b is not None))
        self._add("norm", constants, bindings, writes, push, (1, x.rows, parts), 8.0 * x.rows * x.width)
        return total, out

    def _binary(self, a: View, b: View, *, multiply: bool) -> View:
        texts, positions = max(a.texts, b.texts), max(a.positions, b.positions)
        out = replace(self._recording.rows(texts, positions, a.width), heads=a.heads)
        sides = [number for view in (a, b) for number in _standing(view, texts, positions)]
        groups = (group_count(a.width, _LANES), texts * positions, 1)
        push = packed(positions, a.width, *sides)
        bindings = (a.memory, b.memory, out.memory)
        self._add("binary", (int(multiply),), bindings, (2,), push, groups, 1.0 * out.rows * a.width)
        return out

    def _activated(self, x: View, y: View | None, act: Activation) -> View:
        x, stride = self._even(x)
        passed, passed_stride = (x, 0) if y is None else self._even(y)
        out = replace(self._recording.rows(x.texts, x.positions, x.width), heads=x.heads)
        push = packed(x.width, x.offset, stride, passed.offset, passed_stride)
        groups = (group_count(x.width, _LANES), x.rows, 1)
        constants = (ACTIVATIONS[act], int(y is not None))
        work = 24.0 * x.rows * x.width
        self._add("activate", constants, (x.memory, passed.memory, out.memory), (2,), push, groups, work)
        return out

    def _even(self, x: View) -> tuple[View, int]:
        """``x`` itself or a copy of it whose rows have one stride, and that stride."""
        stride = x.row_stride
        if stride is not None:
            return x, stride
        out = self._recording.rows(x.texts, x.positions, x.width)
        self.copy(x, out)
        return replace(out, heads=x.heads), x.width

    def _joined(self, old: View, new: View, start: int) -> View:
        out = self._recording.rows(new.texts, start + new.positions, new.width)
        self.copy(replace(old, positions=start), replace(out, positions=start))
        after = out.offset + start * out.position_stride
        self.copy(new, replace(out, positions=new.positions, offset=after))
        return replace(out, heads=new.heads)

    def _add(
        self,
        kernel: str,
        constants: tuple[int, ...],
        bindings: tuple[Memory, ...],
        writes: tuple[int, ...],
        push: bytes,
        groups: tuple[int, int, int],
        work: float,
        texels: tuple[Memory, ...] = (),
    ) -> None:
        self._recording.add(Step(kernel, constants, bindings, writes, push, groups, work, texels))


def _gelu(kind: GeluKind) -> Activation:
    return "gelu" if kind == "erf" else "gelu_tanh"


def _standing(view: View, texts: int, positions: int) -> tuple[int, int, int]:
    """Offset and strides of a view that stands still where it has one text or position and the other has more."""
    text = view.text_stride if view.texts == texts else 0
    return view.offset, text, view.position_stride if view.positions == positions else 0
