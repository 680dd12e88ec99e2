"""The tensor operations as a recording of one Core ML program of a fixed shape: one row of S positions, f16.

Layout: Rows are [1, C, 1, S] and Heads [1, N, D, S], channels first, so that a linear layer is a convolution of 1 x 1
(what the Neural Engine places best) and heads cost no transpose. A pooled result is Rows with S = 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from synapse_ane import attention_program, normalising
from synapse_ane.mil import Var, constant, half, mb
from synapse_ane.program_inputs import Gathered, InputPlan, RowCounts
from synapse_host.ops.tensor_ops import Activation, Batch, GeluKind
from synapse_host.ops.weight_source import WeightSource, checked_tensor


class StoredWeight:
    """A checkpoint tensor, not yet part of the program: what becomes of it depends on the operation that uses it."""

    def __init__(self, name: str, values: npt.NDArray[np.float32]) -> None:
        self.name = name
        self.values = values


class ProgramOps:
    """Records into the function that is being built. ``embedded`` gives the program's input for a look-up."""

    def __init__(self, weights: WeightSource, length: int, *, max_tokens: int) -> None:
        self.plan = InputPlan()
        self.inputs: dict[str, Var] = {}
        self._source = weights
        self._length = length
        self._max_tokens = max_tokens
        self._weights: dict[str, StoredWeight] = {}
        self._kernels: dict[str, Var] = {}
        self._masks: attention_program.Masks = {}

    # --- constants and inputs --------------------------------------------------------------------------------

    def weight(self, name: str, shape: Sequence[int]) -> StoredWeight:
        held = self._weights.get(name)
        if held is None or held.values.shape != tuple(shape):
            held = self._weights[name] = StoredWeight(name, checked_tensor(self._source, name, shape))
        return held

    def embedding(self, ids: str, table: StoredWeight) -> Var:
        return self.inputs[self.plan.gather(table.name, ids).name]

    def positions(self, batch: Batch, table: StoredWeight, first: int = 0) -> Var:
        start = _whole_start(batch)
        rows = table.values[first + start : first + start + self._length]
        # A table shorter than the shape is one the row cannot reach: its last rows belong to padding.
        missing = self._length - len(rows)
        return constant(np.pad(rows, ((0, missing), (0, 0))).T[None, :, None, :], table.name)

    def table_row(self, table: StoredWeight, index: int) -> Var:
        return constant(table.values[index].reshape(1, -1, 1, 1), table.name)

    def rope_table(self, theta: float, d: int, scaling: float | None = None) -> tuple[float, int, float | None]:
        return theta, d, scaling

    # --- arithmetic ------------------------------------------------------------------------------------------

    def linear(self, x: Var, w: StoredWeight, b: StoredWeight | None = None, act: Activation | None = None) -> Var:
        return self._activate(self._product(x, w, b), act)

    def add(self, a: Var, b: Var) -> Var:
        return mb.add(x=a, y=b)

    def mul(self, a: Var, b: Var) -> Var:
        return mb.mul(x=a, y=b)

    def layer_norm(self, x: Var, w: StoredWeight, b: StoredWeight | None, eps: float) -> Var:
        mean = mb.reduce_mean(x=x, axes=[1], keep_dims=True)
        normed = mb.mul(x=normalising.by_root_mean_square(mb.sub(x=x, y=mean), 1, eps), y=_channels(w))
        return normed if b is None else mb.add(x=normed, y=_channels(b))

    def rms_norm(self, x: Var, w: StoredWeight, eps: float) -> Var:
        axis = 1 if len(w.values) == x.shape[1] and x.shape[2] == 1 else 2
        return mb.mul(x=normalising.by_root_mean_square(x, axis, eps), y=_channels(w, axis))

    def add_layer_norm(self, x: Var, r: Var, w: StoredWeight, b: StoredWeight | None, eps: float) -> tuple[Var, Var]:
        total = self.add(x, r)
        return total, self.layer_norm(total, w, b, eps)

    def add_rms_norm(self, x: Var, r: Var, w: StoredWeight, eps: float) -> tuple[Var, Var]:
        total = self.add(x, r)
        return total, self.rms_norm(total, w, eps)

    def gelu(self, x: Var, kind: GeluKind) -> Var:
        return mb.gelu(x=x, mode="EXACT" if kind == "erf" else "TANH_APPROXIMATION")

    def silu(self, x: Var) -> Var:
        return mb.silu(x=x)

    def tanh(self, x: Var) -> Var:
        return mb.tanh(x=x)

    def relu(self, x: Var) -> Var:
        return mb.relu(x=x)

    def geglu(self, x: Var, kind: GeluKind) -> Var:
        gate, up = mb.split(x=x, num_splits=2, axis=1)
        return self.mul(self.gelu(gate, kind), up)

    def swiglu(self, gate: Var, up: Var) -> Var:
        return self.mul(self.silu(gate), up)

    def split(self, x: Var, sizes: Sequence[int]) -> tuple[Var, ...]:
        return tuple(mb.split(x=x, split_sizes=list(sizes), axis=1))

    # --- attention -------------------------------------------------------------------------------------------

    def heads(self, x: Var, n: int) -> Var:
        return mb.reshape(x=x, shape=[1, n, x.shape[1] // n, x.shape[3]])

    def merge_heads(self, h: Var) -> Var:
        return mb.reshape(x=h, shape=[1, h.shape[1] * h.shape[2], 1, h.shape[3]])

    def rope(self, h: Var, table: tuple[float, int, float | None], batch: Batch) -> Var:
        return attention_program.rotated(h, table, _whole_start(batch), self._max_tokens)

    def attention(
        self,
        q: Var,
        k: Var,
        v: Var,
        batch: Batch,
        *,
        scale: float,
        causal: bool = False,
        window: int | None = None,
    ) -> Var:
        _whole_start(batch)
        sight = attention_program.Sight(_counts(batch).visible, causal, window)
        return attention_program.attended(q, k, v, sight, scale, self._masks)

    def kv_append(self, cache: object, layer: int, k: Var, v: Var, batch: Batch) -> tuple[Var, Var]:
        if cache is not None:
            raise ValueError("a Core ML program of one fixed shape keeps no cache; this engine does not generate")
        return k, v

    # --- ways out --------------------------------------------------------------------------------------------

    def first_row(self, x: Var, batch: Batch) -> Var:
        return mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, x.shape[1], 1, 1])

    def last_row(self, x: Var, batch: Batch) -> Var:
        return _weighted_sum(x, _counts(batch).last)

    def mean_rows(self, x: Var, batch: Batch) -> Var:
        return _weighted_sum(x, _counts(batch).share)

    def l2_normalize(self, x: Var) -> Var:
        return normalising.to_unit_length(x)

    def logits(self, x: Var, w: StoredWeight, rows: Sequence[int] | None = None) -> Var:
        chosen = w.values if rows is None else w.values[list(rows)]
        return self._leaving(mb.conv(x=x, weight=constant(chosen[:, :, None, None], w.name)))

    def argmax(self, logits: Var) -> Var:
        raise ValueError("this engine embeds and reranks; it picks no tokens")

    def result(self, x: Var) -> Var:
        return self._leaving(mb.reshape(x=x, shape=[1, x.shape[1]]))

    def _leaving(self, x: Var) -> Var:
        """What leaves the program, in the type it leaves in."""
        return mb.cast(x=x, dtype="fp32")

    # --- pieces ----------------------------------------------------------------------------------------------

    def _product(self, x: Var, w: StoredWeight, b: StoredWeight | None) -> Var:
        kernel = self._kernels.get(w.name)
        if kernel is None:
            kernel = self._kernels[w.name] = constant(w.values[:, :, None, None], w.name)
        if b is None:
            return mb.conv(x=x, weight=kernel)
        return mb.conv(x=x, weight=kernel, bias=half(b.values, b.name))

    def _activate(self, y: Var, act: Activation | None) -> Var:
        if act is None:
            return y
        if act in ("gelu", "gelu_tanh"):
            return self.gelu(y, "erf" if act == "gelu" else "tanh")
        return {"silu": self.silu, "tanh": self.tanh, "relu": self.relu}[act](y)


def _channels(w: StoredWeight, axis: int = 1) -> Var:
    shape = [1, 1, 1, 1]
    shape[axis] = -1
    return constant(w.values.reshape(shape), w.name)


def _counts(batch: Batch) -> RowCounts:
    counts: RowCounts = batch.counts
    return counts


def _whole_start(batch: Batch) -> int:
    if not isinstance(batch.start, int):
        raise ValueError("a Core ML program of one fixed shape starts at a fixed position")
    return batch.start


def _weighted_sum(x: Var, weights: Var) -> Var:
    """Sum over positions of [1, C, 1, S] times [1, 1, 1, S], as one product of matrices: [1, C, 1, 1]."""
    length = x.shape[3]
    columns = mb.matmul(x=mb.reshape(x=x, shape=[1, x.shape[1], length]), y=mb.reshape(x=weights, shape=[1, length, 1]))
    return mb.reshape(x=columns, shape=[1, x.shape[1], 1, 1])


__all__ = ["Gathered", "ProgramOps", "StoredWeight"]
